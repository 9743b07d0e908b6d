"""Which class of service a job gets."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from carrel.core.domain.errors import Invalid
from carrel.core.domain.qos import JobKind, QoS


def choose_qos(name: str | None, kind: JobKind, qos: Mapping[str, QoS], *, default: str | None = None) -> QoS:
    """Return the QoS called `name`; without a name the `default` one, or the lab's first that takes jobs of this kind.

    Raises `Invalid`, naming the valid ones, when there is none or when it does not take this kind.
    """
    valid = [key for key, service in qos.items() if kind in service.kinds]
    names = ", ".join(f'"{key}"' for key in valid)
    remedy = f"Those that take a {kind} are {names}." if valid else "Ask an administrator to add one."
    if name is None:
        if not valid:
            raise Invalid(f"No QoS of this lab takes a {kind}.", remedy=remedy)
        return qos[default if default in valid else valid[0]]
    if name not in qos:
        near = get_close_matches(name, valid, n=1)
        meant = f'Did you mean "{near[0]}"? ' if near else ""
        raise Invalid(f'There is no QoS "{name}".', remedy=f"{meant}{remedy}", details={"qos": valid})
    if kind not in qos[name].kinds:
        takes = " and ".join(sorted(qos[name].kinds)) or "nothing"
        raise Invalid(f'QoS "{name}" does not take a {kind}; it takes: {takes}.', remedy=remedy, details={"qos": valid})
    return qos[name]
