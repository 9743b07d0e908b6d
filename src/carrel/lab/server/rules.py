"""The rules of a lab as its administrator writes them: a preset, and tables of `carrel.toml` that change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any

from carrel.core.domain.account import Account
from carrel.core.domain.errors import Invalid
from carrel.core.domain.nodelist import check_nodelist
from carrel.core.domain.partition import LOCAL, Partition
from carrel.core.domain.qos import JobKind, Lends, PreemptMode, QoS
from carrel.core.domain.rules import BACKFILL_TIMES, LabRules
from carrel.core.policy.qos import choose_qos
from carrel.lab.server.engine_factories import factories
from carrel.lab.server.toml import Setting, convert, known, read_toml

#: Tables of `carrel.toml` that are rules.
TABLES = ("qos", "partitions", "partition_names", "accounts", "priority")
_PRESETS = {file.stem: file for file in sorted((Path(__file__).parent / "presets").glob("*.toml"))}
_DEFAULT = "default"
#: Settings of `carrel.toml` that are rules.
_NAMED = ("preset", "default_qos", "session_qos")
#: What an error says instead of the file's name when the file is right and a change to it is not.
CHANGED = "With that change"

#: Keys of the tables, with what their values are like where that is one of a few things.
PARTITION_KEYS = ("nodes", "qos", "engine")
ACCOUNT_KEYS = ("parent", "shares", "users")
PRIORITY_KEYS = {
    "age_weight": "duration",
    "share_weight": "duration",
    "size_weight": "duration",
    "half_life": "duration",
    "cpu_charge": "number",
    "promises": "int",
    "backfill_times": "choice",
}
QOS_KEYS = {
    "kinds": "list of job kinds",
    "default_time": "duration",
    "max_time": "duration",
    "idle_time": "duration",
    "max_jobs_per_user": "int",
    "max_gpus_per_user": "int",
    "max_jobs_per_account": "int",
    "max_gpus_per_account": "int",
    "max_gpus": "int",
    "priority": "int",
    "preempts": "list of classes of service",
    "preempt_mode": "mode",
    "preempt_exempt_time": "duration",
    "preempt_grace": "duration",
    "lends": "choice",
    "short_first": "number",
}


def read_rules(
    tables: Mapping[str, Any],
    where: str,
    *,
    preset: str | None = None,
    default_qos: str | None = None,
    session_qos: str | None = None,
) -> LabRules:
    """The rules that `tables`, found at `where`, say.

    With a `preset` they change and add to it. Without one they are all there is, and where there are none the preset
    "default" is. Raises `Invalid`, with the place and the nearest valid name.
    """
    base: dict[str, Any] = {}
    if preset is not None or "qos" not in tables:
        base = read_toml(_preset(preset or _DEFAULT))
    qos = _read_qos(base.get("qos", {}), tables.get("qos", {}), where)
    partitions = _read_partitions(_table(base.get("partitions", {}), where), tables.get("partitions", {}), qos, where)
    return LabRules(
        qos=qos,
        default_qos=_chosen("default_qos", default_qos, base, qos, JobKind.TASK),
        session_qos=_chosen("session_qos", session_qos, base, qos, JobKind.SESSION),
        partitions=partitions,
        partition_names=_read_names(tables.get("partition_names", {}), partitions, qos, where),
        accounts=_read_accounts(tables.get("accounts", base.get("accounts", {})), where),
        **_read_priority({**base.get("priority", {}), **_table(tables.get("priority", {}), f"{where}: priority")}, where),
    )


def read_lab_rules(file: Path | None, changes: Mapping[str, Any] | None = None) -> LabRules:
    """The rules that `carrel.toml` at `file` says, or the preset "default" without a file.

    With `changes` to them: what stands at "qos.batch.priority", and so on. A change of a class of service that comes from a
    preset keeps the rest of that class, and so does one of an account. Raises `Invalid`, also for a class that there is not.
    """
    tables = {} if file is None else read_toml(file)
    rules = _read_tables(tables, str(file))
    if not changes:
        return rules
    change_tables(tables, changes)
    return _read_tables(tables, CHANGED)


def change_tables(tables: MutableMapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Make changes to what carrel.toml says; a value of None takes a rule out. Raises `Invalid` for what is no rule."""
    if "qos" not in tables and any(path.startswith("qos.") for path in changes):
        tables.setdefault("preset", _DEFAULT)  # or the changed class would be the only one
    for path in _NAMED:
        if changes.get(path) is not None:
            tables[path] = changes[path]
        elif path in changes:
            tables.pop(path, None)
    rules = _read_tables(tables, CHANGED)
    for path, value in changes.items():
        if path not in _NAMED:
            _change(tables, path, value, rules)


def _read_tables(tables: Mapping[str, Any], where: str) -> LabRules:
    named = {
        name: None if tables.get(name) is None else convert(Setting(name, "text", None, ""), tables[name], f"{where}: {name}")
        for name in _NAMED
    }
    return read_rules({name: tables[name] for name in TABLES if name in tables}, where, **named)


def _change(tables: MutableMapping[str, Any], path: str, value: Any, rules: LabRules) -> None:
    first, *rest = path.split(".")
    if first not in TABLES or not rest:
        raise Invalid(
            f'"{path}" is no rule.',
            remedy=f"Name one as in carrel.toml, such as qos.batch.priority; or one of {', '.join(_NAMED)}.",
        )
    if first == "qos" and rest[0] not in rules.qos:
        near = get_close_matches(rest[0], rules.qos, n=1)
        remedy = f'Did you mean "{near[0]}"?' if near else f"There are: {', '.join(rules.qos)}."
        raise Invalid(f'There is no class of service "{rest[0]}" to change.', remedy=remedy)
    table = tables
    for name in path.split(".")[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise Invalid(f'"{path}" is no rule: "{name}" is {inner!r}.', remedy="Name one as in carrel.toml.")
        table = inner
    if value is not None:
        table[rest[-1]] = value
    elif table.pop(rest[-1], None) is None:
        raise Invalid(f"{path} has its value from the preset.", remedy="Write another value: it cannot be left empty.")


def _preset(name: str) -> Path:
    if name not in _PRESETS:
        raise Invalid(f'There is no preset "{name}".', remedy=f"Choose one of: {', '.join(_PRESETS)}.")
    return _PRESETS[name]


def _chosen(setting: str, name: str | None, base: Mapping[str, Any], qos: Mapping[str, QoS], kind: JobKind) -> str:
    if name is not None and name not in qos:
        raise Invalid(f'{setting} is "{name}".', remedy=f"Choose one of: {', '.join(qos)}.")
    if name is not None:
        return name
    if base.get(setting) in qos:
        return str(base[setting])
    try:
        return choose_qos(None, kind, qos).name
    except Invalid:
        return next(iter(qos))  # none takes this kind: such work is refused at submit


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(f"{where} is {value!r}.", remedy="It must be a table.")
    return value


def _read_priority(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        kind = PRIORITY_KEYS[known(key, PRIORITY_KEYS, f"{where}: priority")]
        place = f"{where}: priority.{key}"
        if kind == "duration" and key.endswith("_weight") and value == 0 and not isinstance(value, bool):
            found[key] = 0.0  # it is not to count
        elif kind == "choice":
            if value not in BACKFILL_TIMES:
                choices = " or ".join(f'"{choice}"' for choice in BACKFILL_TIMES)
                raise Invalid(f"{place} is {value!r}.", remedy=f"It must be {choices}.")
            found[key] = value
        elif kind == "int":
            found[key] = convert(Setting(key, kind, None, ""), value, place)
            if found[key] < 1:
                raise Invalid(f"{place} is {value}.", remedy="It must be 1 or more.")
        elif kind == "duration":
            found[key] = float(convert(Setting(key, kind, None, ""), value, place))
        else:
            found[key] = _number(value, place)
    return found


def _number(value: Any, place: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < inf:
        return float(value)
    raise Invalid(f"{place} is {value!r}.", remedy="It must be a number, 0 or more.")


def _read_partitions(base: Mapping[str, Any], tables: Any, qos: Mapping[str, QoS], where: str) -> dict[str, Partition]:
    tables = _table(tables, f"{where}: partitions")
    found: dict[str, Partition] = {}
    for name in (*base, *(name for name in tables if name not in base)):
        place = f"{where}: partitions.{name}"
        table = {**base.get(name, {}), **_table(tables.get(name, {}), place)}
        read = _reader(table, place)
        nodes, takes = _words(table.get("nodes", ["*"]), f"{place}.nodes"), _words(table.get("qos", list(qos)), f"{place}.qos")
        try:
            check_nodelist(nodes)
        except Invalid as error:
            raise Invalid(f"{place}.nodes: {error.message}", remedy=error.remedy) from error
        missing = next((one for one in takes if one not in qos), None)
        if missing is not None:
            raise Invalid(f'{place}.qos: there is no class of service "{missing}".', remedy=f"There are: {', '.join(qos)}.")
        found[name] = replace(read(name, table, place), nodes=nodes, qos=takes)
    # What is added to a preset's classes should not have to be added to its partitions too.
    everywhere = tuple(name for name in qos if not any(partition.takes(name) for partition in found.values()))
    return {name: replace(partition, qos=(*partition.qos, *everywhere)) for name, partition in found.items()}


def _reader(table: Mapping[str, Any], place: str) -> Callable[[str, Mapping[str, Any], str], Partition]:
    """Check the keys of a partition's table; return what reads those that are for its engine."""
    engines, engine = factories(), table.get("engine", LOCAL)
    if not isinstance(engine, str) or engine not in engines:
        named = " or ".join(f'"{one}"' for one in engines)
        raise Invalid(f"{place}.engine is {engine!r}.", remedy=f"It must be {named}.")
    for key in table:
        known(key, dict.fromkeys(partition_keys()), place)
        for other, factory in engines.items():
            if other != engine and key in factory.keys:
                raise Invalid(
                    f"{place}: {key} is for partitions of a {factory.title} cluster.", remedy=f'Write engine = "{other}" too.'
                )
    return engines[engine].read


def partition_keys() -> Sequence[str]:
    """Return the keys of a partition's table: the lab's own, and those of the engines that are installed."""
    return (*PARTITION_KEYS, *(key for factory in factories().values() for key in factory.keys))


def _read_names(table: Any, partitions: Mapping[str, Partition], qos: Mapping[str, QoS], where: str) -> dict[str, str]:
    place = f"{where}: partition_names"
    valid: Mapping[str, object] = partitions or qos
    for name, here in _table(table, place).items():
        if not isinstance(here, str) or (here and here not in valid):
            what = "a partition" if partitions else "a class of service, as this lab has no partitions"
            raise Invalid(f"{place}.{name} is {here!r}.", remedy=f'It must be {what}: {", ".join(valid)}; or "" for none.')
    return dict(table)


def _words(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise Invalid(f"{where} is {value!r}.", remedy="It must be a list of names.")
    return tuple(value)


def _read_accounts(tables: Any, where: str) -> dict[str, Account]:
    found: dict[str, Account] = {}
    for name, table in _table(tables, f"{where}: accounts").items():
        place = f"{where}: accounts.{name}"
        for key in _table(table, place):
            known(key, dict.fromkeys(ACCOUNT_KEYS), place)
        users = _account_users(table.get("users", {}), f"{place}.users")
        parent = convert(Setting("parent", "text", None, ""), table.get("parent", ""), f"{place}.parent")
        found[name] = Account(name=name, parent=parent, shares=_shares(table.get("shares", 1), f"{place}.shares"), users=users)
    for account in found.values():
        _check_parents(account, found, where)
    return found


def _account_users(value: Any, where: str) -> dict[str, int]:
    """Read shares by user; a list of names gives each one."""
    if isinstance(value, dict):
        return {user: _shares(shares, f"{where}.{user}") for user, shares in value.items()}
    if not isinstance(value, list) or not value or not all(isinstance(user, str) and user for user in value):
        raise Invalid(f"{where} is {value!r}.", remedy='Write names, ["ada", "bob"], or their shares, { ada = 2, bob = 1 }.')
    return dict.fromkeys(value, 1)


def _shares(value: Any, where: str) -> int:
    return int(convert(Setting("shares", "int", None, ""), value, where))


def _check_parents(account: Account, accounts: Mapping[str, Account], where: str) -> None:
    above, seen = account.parent, {account.name}
    while above:
        if above not in accounts:
            raise Invalid(f'{where}: accounts.{account.name}.parent is "{above}".', remedy=f"Write [accounts.{above}] too.")
        if above in seen:
            raise Invalid(f'{where}: account "{account.name}" is a part of itself.', remedy="Give it another parent, or none.")
        seen.add(above)
        above = accounts[above].parent


def _read_qos(base: Mapping[str, Any], tables: Any, where: str) -> dict[str, QoS]:
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise Invalid(f"{where}: qos must be tables.", remedy="Write [qos.NAME] with its keys below it.")
    merged = {name: {**base.get(name, {}), **tables.get(name, {})} for name in (*base, *tables)}
    if not merged:
        raise Invalid(f"{where}: there is no class of service.", remedy="Write [qos.NAME] with its keys below it.")
    qos = {name: _one_qos(name, table, f"{where}: qos.{name}") for name, table in merged.items()}
    _check_preempts(qos, where)
    return qos


def _check_preempts(qos: Mapping[str, QoS], where: str) -> None:
    """Every class that is preempted exists, and none preempts itself, directly or through others."""
    for service in qos.values():
        for name in sorted(service.preempts):
            if name not in qos:
                near = get_close_matches(name, qos, n=1)
                remedy = f'Did you mean "{near[0]}"?' if near else f"There are: {', '.join(qos)}."
                raise Invalid(f'{where}: qos.{service.name}.preempts: there is no class of service "{name}".', remedy=remedy)
        below, todo = set[str](), list(service.preempts)
        while todo:
            name = todo.pop()
            if name not in below and name in qos:
                below.add(name)
                todo += qos[name].preempts
        if service.name in below:
            raise Invalid(
                f'{where}: qos.{service.name}.preempts: "{service.name}" would preempt itself.',
                remedy="Take one of the classes out of the circle.",
            )


def _one_qos(name: str, table: Mapping[str, Any], where: str) -> QoS:
    fields: dict[str, Any] = {}
    for key, value in table.items():
        kind = QOS_KEYS[known(key, QOS_KEYS, where)]
        if key == "kinds":
            fields[key] = _kinds(value, where)
        elif key == "preempts":
            fields[key] = frozenset(_words(value, f"{where}.preempts")) if value != [] else frozenset()
        elif key == "preempt_mode":
            fields[key] = _mode(value, where)
        elif key == "lends":
            fields[key] = _lends(value, where)
        elif key == "short_first":
            fields[key] = _number(value, f"{where}.short_first")
        elif key.startswith("preempt_") and value == 0 and not isinstance(value, bool):
            fields[key] = 0
        elif key == "priority" and isinstance(value, int) and not isinstance(value, bool):
            fields[key] = value
        else:
            fields[key] = convert(Setting(key, kind, None, ""), value, f"{where}.{key}")
    qos = QoS(name=name, **fields)
    if qos.max_time is not None and qos.default_time > qos.max_time:
        qos = QoS(name=name, **{**fields, "default_time": qos.max_time})
    return qos


def _mode(value: Any, where: str) -> PreemptMode:
    modes = [mode.value for mode in PreemptMode]
    if value not in modes:
        raise Invalid(f"{where}.preempt_mode is {value!r}.", remedy=f"It must be one of: {', '.join(modes)}.")
    return PreemptMode(value)


def _lends(value: Any, where: str) -> Lends:
    words = [word.value for word in Lends]
    if value not in words:
        raise Invalid(f"{where}.lends is {value!r}.", remedy=f"It must be one of: {', '.join(words)}.")
    return Lends(value)


def _kinds(value: Any, where: str) -> frozenset[JobKind]:
    valid = {kind.value: kind for kind in JobKind}
    if not isinstance(value, list) or not value or not all(item in valid for item in value):
        raise Invalid(f"{where}.kinds is {value!r}.", remedy=f"It must be a list of: {', '.join(valid)}.")
    return frozenset(valid[item] for item in value)
