"""The rules in `carrel.toml`, changed in place: its comments and its order stay, and all else that it says."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from carrel.core.control.rules import ChangedRules, RuleChanges, RuleField, RuleSection
from carrel.core.domain.account import Account
from carrel.core.domain.errors import Conflict, Denied, Invalid
from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules
from carrel.lab.server.rules import CHANGED, PRIORITY_KEYS, QOS_KEYS, change_tables
from carrel.lab.server.toml import read_text, tables_of

_ACCOUNT_KINDS = {"parent": "text", "shares": "int", "users": "shares"}
#: Key of a rule -> what a form calls it.
_LABELS = {
    "kinds": "Kinds of jobs: task, session",
    "default_time": "Walltime of work that names none",
    "max_time": "Longest walltime",
    "idle_time": "Sessions end after so long without use",
    "max_jobs_per_user": "Jobs of a user at once",
    "max_gpus_per_user": "GPUs of a user at once",
    "max_jobs_per_account": "Jobs of an account at once",
    "max_gpus_per_account": "GPUs of an account at once",
    "max_gpus": "GPUs of everybody together",
    "priority": "Priority: larger goes first",
    "preempts": "Classes whose jobs it preempts",
    "preempt_mode": "How its jobs are preempted: none, requeue, suspend",
    "preempt_exempt_time": "Runs so long before it is preempted",
    "preempt_grace": "Time between SIGTERM and SIGKILL then",
    "lends": "Lends its GPUs to: cells, nobody",
    "short_first": "Short jobs first: seconds for each second of GPU time",
    "parent": "A part of the account",
    "shares": "Shares",
    "users": "Users, with their shares: ada=2 bob (empty: all)",
    "age_weight": "Waiting that a point of priority is worth",
    "share_weight": "Weight of fair share",
    "size_weight": "Weight of each GPU",
    "half_life": "Half-life of use",
    "cpu_charge": "Charge of a processor (a GPU: 1)",
    "promises": "Promised starts in each partition",
    "backfill_times": "Backfill goes by: walltime, expected",
}
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


class RulesFile:
    """Implements `carrel.core.control.rules.WrittenRules`. Thread-safe."""

    def __init__(self, file: Path, read: Callable[[dict[str, Any], str], LabRules]) -> None:
        """`read` makes rules of all tables of the file, and of where they are from; it raises `Invalid` for what is wrong."""
        self._file = file
        self._read = read
        self._lock = threading.Lock()

    def changed(self, changes: RuleChanges) -> ChangedRules:
        """Read what is written, and make the changes to it, of which none is written yet."""
        text = read_text(self._file)
        before = self._read(tables_of(text, str(self._file)), str(self._file))
        try:
            document = tomlkit.parse(text)
            change_tables(document, changes)
            after = document.as_string()
        except (TOMLKitError, TypeError, ValueError) as error:
            raise Invalid(f"{CHANGED}: {error}.", remedy="Change carrel.toml by hand, then `carrel reload`.") from error
        rules = self._read(tables_of(after, CHANGED), CHANGED)
        was, new = _texts(self.sections(before)), _texts(self.sections(rules))
        told = {path: f"{was.get(path) or 'none'} → {new.get(path) or 'none'}" for path in changes}
        return ChangedRules(rules=rules, text=after, digest=_digest(text), told=told)

    def write(self, changed: ChangedRules) -> None:
        """Write it, whole or not at all. Raises `Conflict` where it is another one now, `Denied` where it is not the lab's."""
        with self._lock:
            _check_own(self._file)
            if _digest(read_text(self._file)) != changed.digest:
                raise Conflict(f"{self._file} was changed meanwhile.", remedy="Look at it again, then repeat the change.")
            _replace(self._file, changed.text)

    def sections(self, rules: LabRules) -> Sequence[RuleSection]:
        """The fields of a form, with the values of `rules`. A table without a name is a form for one that is new."""
        new = Account(name="")
        return [
            *(_section(f"qos.{name}", QOS_KEYS, qos) for name, qos in rules.qos.items()),
            *(_section(f"accounts.{name}", _ACCOUNT_KINDS, account) for name, account in rules.accounts.items()),
            _section("accounts.", _ACCOUNT_KINDS, new),
            _section("priority", PRIORITY_KEYS, rules),
        ]

    def changes(self, table: str, texts: Mapping[str, str]) -> RuleChanges:
        """Read a form: the fields of `table` that differ from what is written. A field that is not in `texts` is empty."""
        kinds = {"qos": QOS_KEYS, "accounts": _ACCOUNT_KINDS, "priority": PRIORITY_KEYS}.get(table.partition(".")[0])
        if kinds is None or table == "accounts.":
            raise Invalid(f'There are no rules "{table[:40]}" to change.' if table != "accounts." else "The account has no name.")
        rules = self._read(tables_of(read_text(self._file), str(self._file)), str(self._file))
        was = _texts(self.sections(rules))
        said = {key: " ".join(texts.get(f"{table}.{key}", "").split()) for key in kinds}
        new = f"{table}.shares" not in was and table.startswith("accounts.")
        return {
            f"{table}.{key}": _value(kinds[key], key, text)
            for key, text in said.items()
            if text != was.get(f"{table}.{key}", "") or (new and key == "shares")
        }


def _section(path: str, kinds: Mapping[str, str], values: QoS | Account | LabRules) -> RuleSection:
    fields = [
        RuleField(path=f"{path}.{key}", label=_LABELS[key], text=_text(kind, getattr(values, key))) for key, kind in kinds.items()
    ]
    return RuleSection(path=path, fields=fields)


def _text(kind: str, value: Any) -> str:
    """A value as `_value` reads it."""
    if value is None:
        return ""
    if kind == "duration":
        return next((f"{int(value) // size}{unit}" for unit, size in _UNITS if value and not value % size), "0")
    if kind == "shares":
        return " ".join(user if shares == 1 else f"{user}={shares}" for user, shares in value.items())
    if kind.startswith("list"):
        return " ".join(sorted(str(one) for one in value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(kind: str, key: str, text: str) -> Any:
    """The value in carrel.toml for a text of a form; None: nothing stands there."""
    if key == "preempts":
        return text.replace(",", " ").split()  # also none at all, where a preset has some
    if not text:
        return None
    if kind.startswith("list"):
        return text.replace(",", " ").split()
    if kind == "shares":
        named = (one.partition("=") for one in text.replace(",", " ").split())
        return {user: _number(shares or "1") for user, _, shares in named}
    return 0 if kind == "duration" and text == "0" else _number(text) if kind in ("int", "number") else text


def _number(text: str) -> Any:
    """A number; what is none stays text, and is refused as what stands in the file is."""
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _texts(sections: Sequence[RuleSection]) -> dict[str, str]:
    return {field.path: field.text for section in sections for field in section.fields}


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _check_own(file: Path) -> None:
    """Raise `Denied` for a file that is looked after elsewhere: a link to it, another owner, write protection."""
    remedy = "Change it where it is looked after, then `carrel reload`."
    if file.is_symlink():
        raise Denied(f"{file} is a link.", remedy=remedy)
    if not file.exists():
        return
    about = file.stat()
    if about.st_uid != os.geteuid() or not about.st_mode & 0o200:
        raise Denied(f"{file} is not the lab's to write.", remedy=remedy)


def _replace(file: Path, text: str) -> None:
    """Put `text` in the place of the file: after a kill or a loss of power the old text is there, or the new one."""
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)  # of a lab that was killed
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
