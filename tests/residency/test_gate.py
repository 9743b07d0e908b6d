"""Nothing reaches the device without a lease, whoever asks; the lease goes back when the device is idle."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from residency_rig import MIB, Peer, Program, Rig, rig


def waiting(program: Program, count: int) -> None:
    """Until so many calls wait at the gate."""
    while program.order("status")["waiting"] != count:
        time.sleep(0.005)


def held(program: Program, peer: Peer) -> int:
    """Memory of the program, with the gate closed by the broker."""
    at = int(program.good("alloc", size=4 * MIB, seed=1)["at"])
    assert peer.pause()["ok"]
    return at


@pytest.mark.gate
def test_the_first_use_waits_and_goes_on(machine: Rig) -> None:
    program = machine.program()
    program.good("init")
    assert not machine.server.waits()  # cuInit alone takes nothing of a device
    call = program.begin("context")
    peer = machine.server.accept()
    assert peer.hello["role"] == "residency"
    assert peer.hello["token"] == "a token"
    assert peer.hello["gate"] == "closed"
    request = peer.expect("acquire")
    peer.send("queued", request=request["request"], position=1, message="1 before you")
    waiting(program, 1)
    while program.order("status")["message"] != "1 before you":
        time.sleep(0.005)
    peer.send("granted", request=request["request"], lease="a", fence=1)
    assert program.finish(call)["result"] == 0
    assert program.order("status")["gate"] == "open"


def test_the_first_lease_says_which_devices(tmp_path: Path) -> None:
    with rig(tmp_path, gpus=3) as machine:
        uuid = machine.driver.uuids[1]
        program = machine.program({"CARREL_DEVICES": "lease", "CUDA_VISIBLE_DEVICES": ""})
        call = program.begin("init")
        peer = machine.server.accept(linger=3600)
        assert peer.hello["devices"] == []
        peer.grant(devices=[uuid])
        assert program.finish(call) == {"result": 0, "visible": uuid}
        program.good("context")
        assert peer.pause()["devices"] == [uuid]


def test_every_thread_waits(machine: Rig) -> None:
    program, peer = machine.started()
    at = held(program, peer)
    calls = [program.begin("check", at=at, size=4 * MIB, seed=1) for _ in range(5)]
    waiting(program, 5)
    peer.go()
    assert all(program.finish(call) == {"result": 0, "same": True} for call in calls)


def test_questions_about_memory_that_is_here_do_not_wait(machine: Rig) -> None:
    program, peer = machine.started()
    at = held(program, peer)
    assert program.order("range", at=at)["result"] == 0
    assert program.order("memory")["result"] == 0
    program.good("free", at=at)  # nor does what only gives something back


def test_work_goes_on_until_it_is_over_before_the_gate_is_quiet(machine: Rig) -> None:
    program, peer = machine.started()
    at = program.good("alloc", size=4 * MIB, seed=1)["at"]
    machine.driver.inject("cuCtxSynchronize", "hang", -1)
    quiet = peer.pause(timeout=0.05)
    assert not quiet["ok"]
    assert quiet["why"] == "work on the device goes on"
    assert program.order("check", at=at, size=4 * MIB, seed=1)["same"]  # the gate is open again


def test_a_call_that_does_not_return(machine: Rig) -> None:
    program, peer = machine.started()
    at = program.good("alloc", size=4 * MIB, seed=1)["at"]
    machine.driver.inject("cuMemcpyDtoH", "hang", -1)
    program.begin("check", at=at, size=4 * MIB, seed=1)
    while machine.driver.pending():
        pass
    quiet = peer.pause(timeout=0.05)
    assert not quiet["ok"]
    assert quiet["why"] == "a call to the driver does not return"
    assert program.order("check", at=at, size=4 * MIB, seed=1)["same"]


def test_a_capture_is_waited_for(machine: Rig) -> None:
    program, peer = machine.started()
    stream = program.good("stream")["stream"]
    program.good("call", name="cuStreamBeginCapture_v2", arguments=[stream, 0])
    order = peer.begin("pause", timeout=0.05)
    quiet = peer.finish("quiet", order)
    assert not quiet["ok"]
    assert quiet["why"] == "a stream capture goes on"
    order = peer.begin("pause", timeout=60)
    program.good("end_capture", stream=stream)
    assert peer.finish("quiet", order)["ok"]


def test_a_refusal_ends_the_waits_that_there_are(machine: Rig) -> None:
    program = machine.program()
    program.good("init")
    call = program.begin("context")
    peer = machine.server.accept()
    request = peer.expect("acquire")
    peer.send("refused", request=request["request"], code="full", message="there was no room for 30 min.", remedy="Try later.")
    assert program.finish(call)["result"] == 46
    assert "no GPU: there was no room for 30 min. Try later." in program.errors()
    call = program.begin("context")
    peer.grant()
    assert program.finish(call)["result"] == 0


def test_a_lost_state_ends_all_waits(machine: Rig) -> None:
    program, peer = machine.started()
    at = held(program, peer)
    call = program.begin("check", at=at, size=4 * MIB, seed=1)
    waiting(program, 1)
    peer.send("lost", message="the pool is gone")
    assert program.finish(call)["result"] == 709
    assert program.order("check", at=at, size=4 * MIB, seed=1)["result"] == 709


def test_a_broker_that_does_not_know_the_role_changes_nothing(machine: Rig) -> None:
    program = machine.program()
    program.good("init")
    call = program.begin("context")
    peer = Peer(machine.server._socket.accept()[0])
    peer.receive()
    peer.send("refused", code="invalid", message="There is no role 'residency'.", remedy="")
    assert program.finish(call)["result"] == 0
    assert program.order("status")["aside"]
    peer.close()


@pytest.mark.parametrize("ask", [False, True])
def test_an_interrupt_ends_the_wait_of_the_main_thread(ask: bool, machine: Rig) -> None:
    """Also while that thread holds Python's lock, as it does in many extensions."""
    program, peer = machine.started(hold=True, ask=ask)
    at = held(program, peer)
    program.begin("check", at=at, size=4 * MIB, seed=1, thread=False)
    for _ in range(2):
        program.wait_at_the_gate()
        program.interrupt()
        answer = program.finish(program._number)
        assert answer.get("interrupted") or answer.get("result") == 800, answer
        program.begin("check", at=at, size=4 * MIB, seed=1, thread=False)
    program.wait_at_the_gate()
    peer.go()
    assert program.finish(program._number) == {"result": 0, "same": True}


def test_a_request_of_nobody_is_taken_back(machine: Rig) -> None:
    program = machine.program(hold=True)
    program.good("init")
    program.begin("context", thread=False)
    peer = machine.server.accept()
    request = peer.expect("acquire")
    program.wait_at_the_gate()
    program.interrupt()
    program.finish(program._number)
    message = peer.receive()
    assert message == {"op": "cancel", "request": request["request"]}
    peer.send("granted", request=request["request"], lease="late", fence=7)  # it was on its way
    message = peer.receive()
    assert (message["op"], message["lease"], message["fence"]) == ("release", "late", 7)


def test_handlers_of_sigint_are_the_programs_own(machine: Rig) -> None:
    code = """
import os, signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
seen = []
def mine(number, frame): seen.append(number)
assert signal.signal(signal.SIGINT, mine) is signal.default_int_handler
os.kill(os.getpid(), signal.SIGINT)
assert seen == [signal.SIGINT]
assert signal.signal(signal.SIGINT, signal.SIG_IGN) is mine
os.kill(os.getpid(), signal.SIGINT)
os.execvp("sh", ["sh", "-c", "kill -INT $$; echo ignored"])
"""
    done = subprocess.run([sys.executable, "-c", code], env=machine.environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ignored\n"), done.stderr


# -- the lease follows the use


def test_an_idle_device_gives_its_lease_back(machine: Rig) -> None:
    program = machine.program()
    program.good("init")
    call = program.begin("context")
    peer = machine.server.accept(linger=0.05)
    lease = peer.grant()
    program.finish(call)
    release = peer.expect("release")
    assert (release["lease"], release["fence"], release["place"]) == (lease, 1, "none")
    call = program.begin("alloc", size=4 * MIB)
    peer.grant()
    assert program.finish(call)["result"] == 0
    release = peer.expect("release")
    assert release["place"] == "in"
    assert release["movable"] == [4 * MIB]


def test_the_end_of_a_cell_gives_it_back_at_once(machine: Rig) -> None:
    program, peer = machine.started(linger=3600)
    program.order("busy", running=1)
    program.good("alloc", size=4 * MIB, seed=1)
    program.order("idle")
    assert peer.expect("release")["fence"] == 1


def test_a_cell_that_computes_nothing_gives_way_to_who_waits(machine: Rig) -> None:
    program, peer = machine.started(linger=3600)
    program.order("busy", running=1)
    program.good("alloc", size=4 * MIB, seed=1)
    peer.send("wanted")
    assert peer.expect("release")["fence"] == 1


def test_work_on_the_device_keeps_it(machine: Rig) -> None:
    program, peer = machine.started(linger=3600)
    machine.driver.inject("cuCtxSynchronize", "hang", -1)
    program.good("alloc", size=4 * MIB, seed=1)
    program.order("idle")
    while machine.driver.pending():
        pass
    assert program.good("alloc", size=4 * MIB, seed=1)  # the gate is open meanwhile
    assert program.order("status")["lease"] == "lease-1"
    assert peer.receive(0) is None


# -- the connection


def test_without_a_broker_who_has_a_lease_goes_on_and_who_waits_waits(machine: Rig) -> None:
    program, _ = machine.started()
    machine.server.close()
    at = program.good("alloc", size=4 * MIB, seed=1)["at"]
    other = machine.program()
    other.good("init")
    call = other.begin("context")
    machine.server.open()
    peers = {}
    for _ in range(2):
        peer = machine.server.accept(linger=3600)
        peers[peer.pid] = peer
    mine, its = peers[program.process.pid], peers[other.process.pid]
    assert (mine.hello["lease"], mine.hello["fence"], mine.hello["gate"]) == ("lease-1", 1, "open")
    assert its.hello["waiting"]
    its.grant()
    assert other.finish(call)["result"] == 0
    assert mine.pause()["ok"]
    mine.go()
    assert program.order("check", at=at, size=4 * MIB, seed=1)["same"]


def test_a_request_is_the_same_after_a_restart(machine: Rig) -> None:
    program = machine.program()
    program.good("init")
    call = program.begin("context")
    first = machine.server.accept().expect("acquire")
    machine.server.close()
    machine.server.open()
    peer = machine.server.accept()
    assert peer.hello["request"] == first["request"]
    again = peer.expect("acquire")
    assert again["request"] == first["request"]
    peer.send("granted", request=first["request"], lease="a", fence=1)
    assert program.finish(call)["result"] == 0


def test_nonsense_from_the_broker_is_passed_over(machine: Rig) -> None:
    program, peer = machine.started()
    for line in (b"{}\n", b"[1, 2]\n", b'{"op": 3}\n', b"\xff\xfe\n", b'{"op": "later", "x": {"y": [1, {}]}}\n', b"\n"):
        peer.say(line)
    assert peer.pause()["ok"]
    assert peer.go()["ok"]
    assert program.good("alloc", size=4 * MIB, seed=1)
