"""`%gpu`: what the user says about GPUs in a notebook, and sees of them."""

import os
import re

from .link import Refused
from .waiting import span

#: Cells that `%gpu cost` shows one by one.
_LAST_CELLS = 5
#: What the broker says of a kernel.
_COSTS = ("cells", "gpu_seconds", "waited_seconds")
WITHOUT = "This kernel has its GPUs for itself (a reservation), or Carrel lends none here: cells run as in any notebook."


class GpuMagic:
    """The line magic of one kernel."""

    def __init__(self, kernel):
        self._kernel = kernel

    def run(self, line):
        """`%gpu` for the present state; `%gpu 2`, `%gpu on`, `%gpu off`, `%gpu auto`; `%gpu cost`; `%gpu hold 10m`;
        `%gpu simulate 8G`.
        """
        words = line.split("#")[0].split()
        if self._kernel.link is None:
            print(WITHOUT)
        elif self._kernel.link.refused is not None:
            print("This kernel has no GPU from Carrel: " + self._kernel.link.refused)
        elif not words or words[0] == "status":
            print(self._status())
        elif words[0] == "cost":
            print(self._cost())
        elif words[0] in ("on", "off", "auto") or words[0].isdigit():
            self._choose(words[0])
        elif words[0] == "hold":
            self._hold(words[1:])
        elif words[0] == "simulate" and len(words) == 2:
            self._kernel.link.say("simulate", bytes=_bytes(words[1]))
            print("This kernel's state takes %s on simulated GPUs." % words[1])
        else:
            raise ValueError(
                "%%gpu %s is unknown. There are: %%gpu, %%gpu 2, on, off, auto, cost, hold 10m, simulate 8G." % " ".join(words)
            )

    def _choose(self, word):
        if word == "off":
            self._kernel.gpus = 0
            print("Cells take no GPU from now on.")
        elif word == "auto":
            self._kernel.gpus = None
            print("Cells take a GPU when they need one.")
        else:
            count = 1 if word == "on" else int(word)
            if count and word != "on":
                answer = self._asked("home", ("home",), gpus=count)
                if answer is None:
                    return
            self._kernel.gpus = (-1 if word == "on" else count) if count else 0
            print("Each cell takes %s from now on." % ("its GPUs" if word == "on" else "%d GPU%s" % (count, "s"[: count != 1])))

    def _hold(self, words):
        seconds = 0 if words == ["off"] else _span(words[0]) if len(words) == 1 else None
        if seconds is None:
            raise ValueError("Say how long: %gpu hold 10m, or %gpu hold off.")
        answer = self._asked("hold", ("held",), seconds=seconds)
        if answer is not None:
            print(
                "The GPU stays with this kernel for %s after a cell." % words[0]
                if seconds
                else "The GPU goes back with the cell."
            )

    def _asked(self, op, answers, **fields):
        try:
            answer = self._kernel.link.ask(op, answers, **fields)
        except Refused as error:
            print(str(error))
            return None
        if answer is None:
            print("The node's broker does not answer now; try again.")
        return answer

    def _cost(self):
        """What the last cells had, and all of this kernel and of the session."""
        answer = self._asked("status", ("status",))
        if answer is None:
            return ""
        lines = []
        for row in answer.get("history", ()):
            number = self._kernel.numbers.get(row.get("cell"))
            if number is not None and len(lines) < _LAST_CELLS:
                gpus = len(row.get("devices", ()))
                waited = ", waited %s" % span(row["waited"]) if row.get("waited", 0) >= 1 else ""
                waited += "" if row.get("busy") is None else ", busy for %d %% of it" % round(row["busy"])
                lines.append("In [%d]: %d GPU%s for %s%s" % (number, gpus, "s"[: gpus != 1], span(row.get("held", 0)), waited))
        own = [row for row in answer.get("tenants", ()) if row.get("mine") and row.get("pid") == os.getpid()]
        mine = [row for row in answer.get("tenants", ()) if row.get("mine") and own and row.get("job") == own[0].get("job")]
        for who, rows in (("This kernel", own), ("All kernels of this session", mine if len(mine) > len(own) else [])):
            if rows:
                cells, seconds, waited = (sum(row.get(name, 0) for row in rows) for name in _COSTS)
                gpu = "%.2f GPU-hours" % (seconds / 3600) if seconds >= 36 else "%.1f GPU-seconds" % seconds
                lines.append("%s: %d cell%s had GPUs, %s; they waited %s." % (who, cells, "s"[: cells != 1], gpu, span(waited)))
        return "\n".join(lines)

    def _status(self):
        answer = self._asked("status", ("status",))
        if answer is None:
            return ""
        tenants = {row["id"]: row for row in answer.get("tenants", ())}
        leases = {row["id"]: row for row in answer.get("leases", ())}
        lines = []
        for device in answer.get("devices", ()):
            lease = leases.get(device.get("lease"))
            who = "free" if lease is None else "yours" if lease.get("mine") else "somebody else's"
            inside = [tenants[name] for name in device.get("residents", ()) if name in tenants]
            mine = sum(1 for row in inside if row.get("mine"))
            lines.append(
                "GPU %s  %-28s %5.1f of %.1f GiB  %-15s resident: %d of yours, %d of others"
                % (
                    device.get("index"),
                    device.get("name", "") if not device.get("simulated") else "simulated GPU",
                    device.get("used", 0) / 2**30,
                    device.get("memory", 0) / 2**30,
                    who,
                    mine,
                    len(inside) - mine,
                )
            )
        for row in answer.get("queue", ()):
            lines.append("%s in line: %s" % (row.get("position"), "you" if row.get("mine") else "somebody else"))
        for row in tenants.values():
            if row.get("mine") and row.get("pid") == os.getpid() and row.get("way"):
                lines.append(_way(row))
        chosen = {None: "when a cell needs one", 0: "never", -1: "for each cell"}.get(
            self._kernel.gpus, "%s for each cell" % self._kernel.gpus
        )
        lines.append("This kernel takes a GPU %s." % chosen)
        return "\n".join(lines)


def _way(row):
    """How this kernel's GPU state leaves the GPU when others need the room, and why not in a better way."""
    if row["way"] == "bus":
        return "Its GPU state moves over the bus."
    if row["way"] == "driver":
        return "Its GPU state is moved by the driver" + (" (%s)." % row["not_bus"] if row.get("not_bus") else ".")
    return "Its GPU state stays where it is: %s." % (row.get("why_not") or row.get("not_bus"))


def _span(text):
    found = re.fullmatch(r"(\d+)([smh]?)", text)
    return int(found.group(1)) * {"s": 1, "": 60, "m": 60, "h": 3600}[found.group(2)] if found else None


def _bytes(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise ValueError('"%s" is no size; say 8G.' % text)
    return int(float(found.group(1)) * 1024 ** " KMGT".index(found.group(2).upper() or " "))
