"""What the lab has signed: an order to run one attempt, which every node can check and only the lab can make.

Ed25519 (RFC 8032). Only checking is done here, with what is public, so nothing depends on how long it takes; the lab signs with a
library (`carrel.lab.server.signing`). It is written out because a batch script that imports such a library for one check would
take longer for that than for all else that it does before its command begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Denied

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
#: What is written into a launch file after it was signed.
_OF_THE_NODE = {"node", "devices", "shares", "paths"}
#: A point is (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z (section 5.1.4).
_Point = tuple[int, int, int, int]
_ZERO: _Point = (0, 1, 1, 0)


@dataclass(frozen=True, slots=True)
class SignedOrder:
    """What the lab has signed, and how."""

    #: The Unix user who is to run it; "": the lab's own.
    user: str
    #: The launch, as JSON has it.
    launch: Mapping[str, Any]
    #: Hexadecimal.
    signature: str

    def dump(self) -> bytes:
        """Return it as it lies beside the launch file."""
        return json.dumps({"user": self.user, "launch": self.launch, "signature": self.signature}).encode()

    def check(self, key: str, *, by: Callable[[bytes, str, str], bool] | None = None) -> None:
        """Raise `Denied` unless the lab of this key has signed it, as `by` finds (`is_signed`, `signed_by`)."""
        if not (by or is_signed)(order_of(self.user, self.launch), self.signature, key):
            raise Denied("The order to run this was not signed by the lab.", remedy="Find out who has written there.")


def read_order(data: bytes) -> SignedOrder:
    """Return what `dump` has made. Raises `Denied` for anything else."""
    try:
        found = json.loads(data)
        return SignedOrder(user=str(found["user"]), launch=dict(found["launch"]), signature=str(found["signature"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Denied("What should be an order of the lab's makes no sense.", remedy="Find out who has written there.") from error


def check_launch(launch: Mapping[str, Any], order: SignedOrder, attempt: Path, user: str) -> None:
    """Raise `Denied` unless a launch file is what `order` says, in the directory of its `attempt`, for the Unix user `user`.

    What the node adds may be there: which node and devices it is. A deputy (`user` is not "") keeps code and environments beside
    its spool; what the lab runs as itself lies where the lab has said.
    """
    said = order.launch
    if (str(said.get("job_id")), str(said.get("attempt"))) != (attempt.parent.name, attempt.name):
        raise Denied(
            f"The launch file of job {attempt.parent.name}, attempt {attempt.name}, is that of job {said.get('job_id')}, attempt "
            f"{said.get('attempt')}.",
            remedy="Find out who has written there.",
        )
    if order.user != user:
        raise Denied(
            f"The lab has ordered this of {order.user or 'its own user'}, not of {user or 'its own user'}.",
            remedy="Find out who has written there.",
        )
    changed = sorted(key for key in {*said, *launch} - _OF_THE_NODE if launch.get(key) != said.get(key))
    changed = [key for key in changed if key != "task" or not (user and _is_same_task(launch, said, attempt))]
    changed += _strange_paths(launch, said, attempt if user else None)
    if changed:
        raise Denied(
            f"The launch file was changed after the lab had signed it: {', '.join(changed)}.",
            remedy="Find out who has written there.",
        )


def _is_same_task(launch: Mapping[str, Any], said: Mapping[str, Any], attempt: Path) -> bool:
    """A session that would work on files in the lab's own hands works on its user's (`carrel.engines.deputy`)."""
    task, signed = launch.get("task"), said.get("task")
    if not (isinstance(task, dict) and isinstance(signed, dict)):
        return False
    session, asked = task.get("session"), signed.get("session")
    if not (isinstance(session, dict) and isinstance(asked, dict)):
        return False
    moved = {**signed, "session": {**asked, "directory": str(attempt.parents[2] / "files")}}
    return task == moved


def _strange_paths(launch: Mapping[str, Any], said: Mapping[str, Any], attempt: Path | None) -> list[str]:
    """Return which paths are neither as the lab has said nor, in a deputy's hands (`attempt`), the user's own or none."""
    paths, signed = launch.get("paths"), said.get("paths")
    if not (isinstance(paths, dict) and isinstance(signed, dict)):
        return ["paths"]
    # A node without a broker has no library either. What is closed to the lab's own runner, a user's runner cannot read anyway.
    others: dict[str, object] = {"broker": "", "residency": ""}
    if attempt is not None:
        others |= {name: str(attempt.parents[2] / name) for name in ("environments", "snapshots", "blobs", "inputs")}
        others |= {"closed": [], "files": "", "bodies": ""}
        others |= {"client": _own_client(str(paths.get("client", "")), attempt.parents[2] / "client")}
    names = {*paths, *signed} - {"doorbell", "bell"}  # where news are sent, which decide nothing
    return sorted(
        f"paths.{name}" for name in names if paths.get(name) not in (signed.get(name), others.get(name, signed.get(name)))
    )


def _own_client(client: str, place: Path) -> str:
    """The copy of the client in a user's directory that a launch names, whichever of those in `place`; "": none there."""
    name = client.removeprefix(f"{place}/")
    return client if name.isalnum() and client == str(place / name) else ""


def opening_of(nonce: str, user: str, lab: str) -> bytes:
    """Return what a lab signs to show a deputy that it is the lab: good for once, as the deputy's own word is in it."""
    return json.dumps({"deputy": user, "lab": lab, "nonce": nonce}, sort_keys=True, separators=(",", ":")).encode()


def order_of(user: str, launch: Mapping[str, Any]) -> bytes:
    """Return what is signed: that the Unix user ("": the lab's own) is to run this launch, as JSON has it."""
    return json.dumps({"launch": launch, "user": user}, sort_keys=True, separators=(",", ":")).encode()


def is_signed(message: bytes, signature: str, key: str) -> bool:
    """Return whether the owner of `key` has signed `message`; both are hexadecimal."""
    try:
        made, public = _bytes_of(signature), _bytes_of(key)
    except ValueError:
        return False
    if len(made) != 64 or len(public) != 32:
        return False
    owner, commitment = _point(public), _point(made[:32])
    scalar = int.from_bytes(made[32:], "little")
    if owner is None or commitment is None or scalar >= _L:
        return False
    challenge = int.from_bytes(_sha512(made[:32] + public + message), "little") % _L
    # scalar * B - challenge * owner is to be the commitment.
    found = _sum_of(scalar, _BASE, challenge, (_P - owner[0], owner[1], owner[2], _P - owner[3]))
    return (found[0] * commitment[2] - commitment[0] * found[2]) % _P == 0 and (
        found[1] * commitment[2] - commitment[1] * found[2]
    ) % _P == 0


def signed_by(message: bytes, signature: str, key: str) -> bool:
    """`is_signed` by a library: for who checks many, and lives long enough to import it."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(_bytes_of(key)).verify(_bytes_of(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _bytes_of(text: str) -> bytes:
    """Return what small hexadecimal digits say: there is one way to write a signature, and no other one passes for it."""
    found = bytes.fromhex(text)
    if found.hex() != text:
        raise ValueError("other characters than digits and small letters")
    return found


def _sha512(data: bytes) -> bytes:
    for name in ("_sha2", "_sha512", "hashlib"):  # Python's own first: OpenSSL takes milliseconds to load
        try:
            return bytes(import_module(name).sha512(data).digest())
        except ImportError:
            continue
    raise AssertionError("hashlib is part of Python")


def _point(data: bytes) -> _Point | None:
    """Return the point that 32 bytes stand for (section 5.1.3); None for none."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    if y >= _P:
        return None
    u, v = (y * y - 1) % _P, (_D * y * y + 1) % _P
    x = u * pow(v, 3, _P) * pow(u * pow(v, 7, _P), (_P - 5) // 8, _P) % _P
    if (v * x * x - u) % _P:
        x = x * _ROOT % _P
        if (v * x * x - u) % _P:
            return None
    if x == 0 and sign:
        return None
    if x & 1 != sign:
        x = _P - x
    return (x, y, 1, x * y % _P)


def _add(one: _Point, other: _Point) -> _Point:
    a, b = (one[1] - one[0]) * (other[1] - other[0]) % _P, (one[1] + one[0]) * (other[1] + other[0]) % _P
    c, d = 2 * one[3] * other[3] * _D % _P, 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % _P, g * h % _P, f * g % _P, e * h % _P)


def _double(one: _Point) -> _Point:
    a, b, c = one[0] * one[0] % _P, one[1] * one[1] % _P, 2 * one[2] * one[2] % _P
    h = a + b
    e = h - (one[0] + one[1]) * (one[0] + one[1]) % _P
    g = a - b
    f = c + g
    return (e * f % _P, g * h % _P, f * g % _P, e * h % _P)


def _sum_of(first: int, one: _Point, second: int, other: _Point) -> _Point:
    """Return first * one + second * other, bit by bit for both at once."""
    both = {1: one, 2: other, 3: _add(one, other)}
    found = _ZERO
    for bit in range(max(first.bit_length(), second.bit_length()) - 1, -1, -1):
        found = _double(found)
        if step := (first >> bit & 1) | (second >> bit & 1) << 1:
            found = _add(found, both[step])
    return found


_base = _point((4 * pow(5, _P - 2, _P) % _P).to_bytes(32, "little"))
assert _base is not None
_BASE: _Point = _base
