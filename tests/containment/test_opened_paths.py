"""No path that a job can change is opened, connected to or trusted from outside: where the lab opens paths is written down.

Whoever opens another path in these rooms reads it with `carrel.core.spool.foreign` (or walks it with `.trees`), or writes into
`opened_paths.txt` under which heading it belongs: why no job can have put something else there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import carrel

pytestmark = pytest.mark.quick

SOURCE = Path(carrel.__file__).parent
TABLE = Path(__file__).with_name("opened_paths.txt")
#: What runs outside of walls, and knows directories of jobs, of their environments, of builds or of sessions.
ROOMS = (
    "core/control",
    "core/spool",
    "engines",
    "lab/gateway",
    "lab/portal",
    "lab/retention",
    "lab/server",
    "lab/tracking",
    "node/broker",
    "node/environments",
    "node/leases",
    "node/runner",
    "node/staging",
    "notebooks/address.py",
    "notebooks/proxy",
    "notebooks/relay.py",
)
#: They take a path, and follow links on it.
FOLLOW = {"read_bytes", "read_text", "write_bytes", "write_text", "chmod", "chown"}
FOLLOW |= {"copyfile", "copy2", "copymode", "truncate", "utime", "rglob"}
CONNECT = {"connect", "connect_ex", "unix_connect", "open_unix_connection", "create_unix_connection", "connect_unix_socket"}
#: With one of these beside O_NOFOLLOW nothing is followed, and nothing waited for that is not the caller's own.
SAFE = ("O_NONBLOCK", "O_PATH", "O_DIRECTORY", "O_CREAT")


def opened(path: Path) -> Iterator[str]:
    """What a module opens, connects to or changes by a path that is followed, as it is written there."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        called, first = ast.unparse(node.func), ast.unparse(node.args[0]) if node.args else ""
        flags = " ".join(map(ast.unparse, node.args[1:2]))
        words = [word.arg for word in node.keywords]
        if "/proc/" in called or first.startswith(("'/proc/", "f'/proc/", "os.devnull")):
            continue
        if called == "os.open":
            if "O_NOFOLLOW" not in flags or not any(flag in flags for flag in SAFE):
                yield f"os.open({first})"
        elif called == "open" or (name == "open" and _is_mode(node.args)):  # not "x", which makes what is not there
            yield f"open({first})" if called == "open" else called
        elif name in FOLLOW or "uds" in words:
            yield called
        elif name in CONNECT:
            yield f"{called}({first})"


def _is_mode(arguments: list[ast.expr]) -> bool:
    """True for the arguments of `Path.open`, and not for what other objects' `open` takes."""
    return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and set(str(arguments[0].value)) <= set("rwab+")


def test_each_path_that_the_lab_opens_is_one_that_no_job_can_change() -> None:
    found = set()
    for room in ROOMS:
        place = SOURCE / room
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            found |= {f"{path.relative_to(SOURCE)} {what}" for what in opened(path)}
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    known = set(lines)
    assert found - known == set(), "read it with carrel.core.spool.foreign, or write down why no job can change it"
    assert known - found == set(), "no longer there"
    assert len(lines) == len(known)


def test_what_would_be_followed_is_seen(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "path.read_bytes()\nopen(path)\npath.open('rb')\nos.open(path, os.O_RDONLY)\nos.open(path, os.O_RDONLY | os.O_NOFOLLOW)\n"
        "sock.connect(path)\nhttpx.HTTPTransport(uds=path)\n(place / 'x').chmod(0o700)\nshutil.copyfile(path, other)\n"
    )
    assert len(list(opened(module))) == 9
    module.write_text(
        "open('/proc/self/stat')\nPath(f'/proc/{pid}/stat').read_bytes()\nos.open(path, os.O_NOFOLLOW | os.O_NONBLOCK)\n"
        "store.open(digest)\nread_regular(path)\nos.open(os.devnull, os.O_RDWR)\n"
    )
    assert list(opened(module)) == []
