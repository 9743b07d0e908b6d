"""The broker's protocol: what a kernel, a runner and an observer say to it, and what it answers.

A unix stream socket; every message is one JSON object on one line (UTF-8, at most `LONGEST` bytes). Messages from the client
have an ``op``; the broker's have one too. Fields that a side does not know are ignored, so both may be newer than the other.
The kernel hook (`carrel.notebooks.hook`) speaks it without importing this module.

The broker takes uid and pid from the socket (SO_PEERCRED, unix(7)) and never from a message. A tenant is a process: (pid, start
time). It keeps its identity, its leases and its place in the queue when it connects again, so a broker can be restarted while
cells run. A lease ends when its holder releases it, when the holder closes the connection while the broker lives, or when the
process is gone (pidfd_open(2)); never because a message did not come in time.

Client to broker
----------------
``hello``    v (int), role, token; kernel (id of the Jupyter kernel), label (what people call it: the notebook's path).
             attempt (directory of the job's attempt: where jobs run as their owners the broker knows none by itself).
             Must come first. The token is that of the job (`CARREL_TOKEN`); an observer of the whole node shows the node's own.
             Answer: ``welcome`` or ``refused`` and the end of the connection.
``acquire``  request (id, unique in the connection's process), gpus (int, 0: what the session asked for), cell (id of the
             execute_request, "" for a task), devices (list of UUIDs: exactly these; roles "runner" only, and on a node of a
             cluster not even that: there they are those of which its job has shares), ends_by (Unix seconds
             or null), elsewhere (bool; runners: refuse with code "blocked" where nothing that can be done now would clear the
             devices, since the job can be placed on others), lends (bool; runners: cells may have the devices for a while, as
             ``paused`` and ``resumed`` say). Answers: any number of ``queued``, then one of ``granted``, ``refused``. The same
             request again (after a connection was lost) is the same request, and a lease that was granted for it is granted
             again, with its fence.
``cancel``   request. Answer: ``cancelled``. When ``granted`` was on its way already, the lease must be released.
``release``  lease, fence; cell, outcome ("ok", "error", "aborted"), cuda (bool: the process has a CUDA state), blockers (list of
             words why its state cannot be moved: "managed memory", "CUDA IPC", "distributed", "JAX"), background (int: threads
             and tasks of the cell that outlive it), oom (bool: the cell met a full device; its next one gets all the room there
             is), cached (list of bytes, one for each device that the process sees: what it only keeps in reserve).
             Answer: ``released``; nobody needs to wait for it. Unknown or stale: ignored, and answered all the same. The
             fence may be the one from before a pause.
``set_aside`` lease. From a runner: others are to have the devices of its task. That is paused, and stays so until ``go_on``.
             Answer: ``paused`` with aside, once that is so; none while its state cannot be moved. It may be said again.
``go_on``    lease. From a runner: its task asks for its devices again. Answer: ``resumed``, once they are its own.
``touched``  The process is about to use CUDA for the first time outside of a lease (it holds none): for the record.
``simulate`` bytes: what the process' made-up GPU state takes, and cached, how much of that it only keeps in reserve (0 without
             it), on simulated devices; ignored elsewhere. A process that never says
             so has one of a fixed size from its first lease on; 0: it has none. `cuda` is ignored there.
``home``     gpus: how many devices the session's cells use from now on. Answer: ``home`` (devices) or ``refused`` (the process
             has a CUDA state already).
``hold``     seconds: keep the devices for so long after the cell that runs (or from now on) although others wait; 0: no more.
             Answer: ``held`` (until: Unix seconds at least, or null) or ``refused``.
``prepared`` id, bytes (allocated, or null), cached (as in ``release``: what is still kept), blockers. The answer to ``prepare``.
``status``   Answer: one ``status``, with what this client may see.
``watch``    A ``status`` now and after each change, at most ten in a second; an observer of the whole node gets one every few
             seconds while cells run, because what they are charged grows. With past (bool; an observer of the whole node):
             ``past`` too, from then on.
``drained``  devices (why, by UUID): from an observer of the whole node, the lab has drained these, and no others. Nobody new gets
             them; what runs there goes on. Not answered.
``took``     until: the leases of ``past`` up to this number are written down, and need not be sent again; 0: they could not be.

Broker to client
----------------
``welcome``  v, broker (id of this node's broker, the same after a restart), tier ("suspend", "hold", "simulated"), devices (list
             of {uuid, index, name, memory, simulated}: all that are lent here), gpus (int: what a cell of this session gets),
             home (list of UUIDs: the devices this process should see until its first grant says otherwise), leases (list of
             ``granted`` messages that this process still holds, those of state "held" too; one that it knows nothing of, because
             its release was not heard, it releases now), hold_time (seconds that a state which cannot be moved keeps its
             devices), stay (module -> name of the library: a process that has imported one names it among its blockers), lost
             (why the process' GPU state is lost, or ""; its leases are over then).
``queued``   request, position (1: next), estimate (seconds or null), code, message (one line for the user).
``granted``  request, lease (id), fence (int, larger for each grant of a device), devices (list of {uuid, index, name, memory,
             simulated}), waited (seconds), resumed (bool: a state was brought back for it), state (`LeaseState`: "active", or in
             a welcome "paused" or "held"), aside (bool: as last said by ``set_aside`` or ``go_on``), message.
``refused``  request (when it was about one), code, message, remedy.
``cancelled`` (request), ``released`` (lease), ``home``, ``held``: see above.
``prepare``  id, timeout (seconds): somebody needs room on the device, and the process' state may be moved off it while it is
             idle; let go of what is not needed (collect garbage, empty caches), then say ``prepared``. Going on without an
             answer is allowed.
``paused``   lease, message: suspended in mid-flight; the GPU calls of the cell, or of the task, block until ``resumed`` (lease,
             devices, fence). With aside (bool) it does not ask for its devices by itself. Both with people: for how many
             people it was paused until now, never for whom.
``notice``   level ("info", "warning", "error"), message: one line for the user (an idle timer runs out, a stranger is on the
             device).
``lost``     message: the process' GPU state cannot be brought back; the kernel has to be restarted.
``past``     leases (of sessions, that are over, oldest first; no message comes before a ``took`` for the last): n (number,
             without gaps on this node as long as its journal lasts; those that nobody took in time are missing), job, attempt,
             process (of the session: a kernel, or another program of it), asked (Unix seconds), waited (seconds until it was
             granted), computed (seconds, without pauses), over (Unix seconds at which it was given back; null: the process
             ended while there was no broker, and nobody knows when), seen (until when it was there at least), gpus, type (""
             where they are of several), memory (bytes of the smallest), outcome (as in history), busy (percent of the looks at
             its devices in which a kernel ran, of every two seconds; null: there was none).
``status``   broker (as in the welcome), tier, simulated (bool), tasks_lend (bool: tasks can lend to cells), and these
             lists; what names others (owner, job, label …) is blank for whom it is not:
             devices: uuid, index, name, type, memory, used (bytes), simulated, withheld (why, or null), lease (id or null),
               residents (tenant ids), strangers (list of {pid, bytes, name}: processes on the device that hold no lease and are
               no tenant), last_used (Unix seconds at which a cell's lease on it ended, 0: never), wanted (requests that wait for
               this very device), by (list of {tenant, bytes, cached}: whose state is in its memory), known_since (from when on
               ``hour`` tells everything of it, Unix seconds, or null)
             tenants: id, job, owner, role, kernel, label, pid, state (`Residency`), home, bytes, cached (of them, kept in
               reserve), way (how its state leaves its devices, `MoveSpeeds`), not_bus (why not over the bus, in words of ours),
               suspendable (way is not "hold"), why_not (why it is), stays (why_not in words of ours), last_used, retry_at
               (moving its state did not begin: not tried again before, Unix seconds), failures (such tries in a row), cells,
               gpu_seconds, waited_seconds, background, context (where its CUDA contexts are while its state is away: "device",
               "leaving", "away"; "" where none is known), context_bytes, mine (bool)
             leases: id, fence, tenant, job, owner, role, devices, since, state (`LeaseState`), cell, held_until, exclusive,
               aside (set aside), wanted_since (since when others wait for a held one, or null), mine
             queue: request, tenant, job, owner, role, gpus, devices (those that it waits for; []: any), position, since,
               estimate, code, message, resumes (the paused lease that wants to go on, or null), mine
             history (of the caller's own session, newest first, at most 50): cell, at, waited, held, devices, outcome
               ("ok", "error", "aborted", "killed", "lost")
             moves (states that move now): tenant, job, owner, label, role, devices, direction ("out", "back"; between host memory
               and the disk "to_disk", "from_disk"), way, bytes, done (bytes, null where this way of moving does not
               say), since, ends (Unix seconds, or null), mine
             hour (what was so on the devices within the last hour, oldest first; [] in what a watch of a job's own sends after
               its first): device, what ("computes", "holds", "paused",
               "leaves", "returns"), since, until (null: it is so now), seconds (how much of that really, where short ones were
               put together), job, owner, label, role, mine
             rates (measured, on this node): way, direction ("out", "back"; "exchange": both, in sum), rate (bytes a second)
             host: limit and left (bytes of host memory that moved states may take, and that are free for more; null: no limit),
               states (bytes that they take),
               pool (limit, given to processes and ready for others, of the pieces for residency libraries; null: there is none),
               disk (limit and left of the disk's room for states that host memory has none for; null: there is no such room)
             charges (for an observer of the whole node): job, attempt, owner, seconds (devices ×
               seconds that the session's cells have borrowed until now: held leases too, pauses not; it grows unless the
               broker's journal is lost, and is kept for a while after the session's end)

A process with the residency library
------------------------------------
A library (`carrel-lab-residency`, in C) stops calls to the driver at a gate while the process has no lease, and moves its GPU
memory when the broker says so. It speaks over a connection of its own, of role "residency"; the kernel's hook has its own. The
process is one tenant, by pid and start time, whichever connects first, with one lease: who asks while the other has it joins it.
The library decides when that is over; a lease of a cell that the library has not joined is not used, and ends when others want
its devices. A process without a hook (a child of a kernel) is a tenant of its own of the same session. The processes of a task
belong to the tenant of its runner, and wait for its lease.

Values are flat: texts, numbers,
bools, and lists of texts or numbers; a line to it has at most 64 KiB. Descriptors go with the first byte of their message
(SCM_RIGHTS), in the order of its lists. An order's ``id`` comes back in its answer; orders are carried out one after the
other. If the connection is lost nothing changes in the process; it connects again and says everything.

From the library:

``hello``     v, role, token, attempt (as a kernel says it); gate ("open", "closed"), place (where its movable memory is:
              "none", "in", "out", "spilled": on the broker's disk, "lost"), paused, waiting (bool: calls wait at the gate),
              request (if one was not answered), lease and fence (if it has one), devices (UUIDs that it sees; [] before
              cuInit), movable and stays (bytes for each device; a context itself is in neither), reasons (why memory stays,
              in words of ours), leaked (bytes that the driver did not take back), pieces and sizes of the pool that it has,
              with their descriptors.
``acquire``   request. The first call came to a closed gate. The same request again after a lost connection is the same
              request.
``cancel``    request: nobody waits any more. If ``granted`` was on its way, ``release`` follows.
``release``   lease, fence, place, devices, movable, stays, reasons, leaked. The device is idle; the gate is closed.
``quiet``     id, ok, why, seconds, place, devices, movable, stays, reasons, leaked, reach (bytes of its pieces, from the first
              one's beginning, in which a state lies that is out). Answer to ``pause``.
``pieces``    id, ok, why, result (CUresult), bytes (of all its pieces), seconds.
``pieces_back`` id, ok, why, place, bytes (that are left).
``filled``    id, ok, why, place, bytes (of all its pieces).
``progress``  id, done, of (bytes of a move).
``moved``     id, ok, place, why, bytes, seconds, leaked. Answer to ``out`` and ``in``. Not ok: it was taken back, and all is
              where ``place`` says; "lost" if neither side could be made whole now (``in`` may be tried again).
``going``     id, ok (the gate is open), place.

To the library:

``welcome``   v, linger (seconds without work on the device after which it gives a lease back; 0.2). ``refused`` without a
              request instead: the process goes on as without the library.
``queued``    request, message: kept for those who ask the process why it waits.
``granted``   request, lease, fence, devices (UUIDs: a process that has none yet sees these from its cuInit on). The gate
              opens if the memory is not out; bring it in first.
``refused``   request, message, remedy: the calls that wait end with CUDA_ERROR_DEVICE_UNAVAILABLE.
``pause``     id, timeout (seconds): close the gate, let the calls inside return and captures end, wait for the end of all
              work. After an ok the gate is closed until ``go`` or ``granted``; otherwise it is as it was.
``pieces``    id, pieces (numbers), sizes (bytes), with descriptors of shared memory: map and register them.
``pieces_back`` id, pieces: let go of them; not ok while the state lies there. With spilled (bytes): so many of what lies in these
              pieces, which must be all that it has, in their order, are on the disk: it lets go of all of them, or of none,
              although the state lies there. Only while it is paused and out; then its place is "spilled".
``filled``    id, pieces, bytes: the state is in these pieces again, in their order from the first one's beginning on; they must
              be all that it has, and may be of other sizes than before. Then its place is "out".
``out``       id: the memory goes to the pool, piece by piece, and the device's memory with it. The process must be paused.
``in``        id, patience (seconds without a piece in which a full device is tried again: another's memory may be leaving it, and
              each piece that leaves makes room for one that comes). What has come goes again if the rest does not.
``go``        id, lease, fence (without a lease: as before the pause, but not paused).
``wanted``    Somebody waits for the device: a cell that runs but has not used it for a second gives it back.
``lost``      message: the state cannot come back; each call ends with CUDA_ERROR_CONTEXT_IS_DESTROYED.
"""

from __future__ import annotations

from typing import Any

from carrel.core.transport.framing import Garbled, object_line, object_of

VERSION = 1
#: Longest message in bytes, with its newline.
LONGEST = 1 << 20

#: Code of a refusal: the devices cannot be cleared now, and the job can be placed elsewhere.
BLOCKED = "blocked"

#: Role of a Jupyter kernel, whose cells borrow devices, and of a worker of a pool, whose calls do.
KERNEL = "kernel"
#: Role of the runner of a task or of a reserved session: it holds the devices that placement gave it.
RUNNER = "runner"
#: Role of a process with the residency library, beside its kernel's or runner's own connection.
RESIDENCY = "residency"
#: Role of those who only look.
OBSERVER = "observer"

Message = dict[str, Any]


def encode(op: str, **fields: Any) -> bytes:
    """The line of one message."""
    return object_line({"op": op, **fields})


def decode(line: bytes) -> Message:
    """The message of one line. Raises `ValueError` when it is none."""
    message = object_of(line)
    if not isinstance(message.get("op"), str):
        raise Garbled("the message has no op")
    return message
