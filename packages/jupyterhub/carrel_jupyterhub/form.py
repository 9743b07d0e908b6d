"""The form that a hub shows before it starts a server. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from carrel_jupyterhub.words import LabRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the lab has for one user."""

    #: Names of environments, beside "default".
    environments: Sequence[str] = ()
    #: Most GPUs on one node.
    gpus: int = 0
    simulated: bool = False
    #: Names of classes of service that take sessions.
    qos: Sequence[str] = ()


def render(offer: Offer, defaults: Mapping[str, Any]) -> str:
    """HTML for the inside of the hub's form element; `defaults` are chosen already."""
    kind = "simulated GPUs" if offer.simulated else "GPUs"
    most = offer.gpus
    gpus = [("", "as the lab decides"), *((str(number), str(number)) for number in range(most + 1))]
    environments = [(name, name) for name in dict.fromkeys(("default", *offer.environments))]
    qos = [("", "as the lab decides"), *((name, name) for name in offer.qos)]
    checked = " checked" if defaults.get("reserve") else ""
    parts = [
        _select("environment", "Environment", environments, defaults.get("environment", "default")),
        _text("image", "Image, in the place of an environment", defaults.get("image"), "has python3 and ipykernel"),
        _select("gpus", f"{kind[0].upper()}{kind[1:]} for a cell that uses them", gpus, defaults.get("gpus")),
        '<div class="form-check mb-3"><input class="form-check-input" type="checkbox" id="carrel-reserve" name="reserve"'
        f'{checked}><label class="form-check-label" for="carrel-reserve">'
        f"Keep the {kind} from start to end, also while no cell runs</label></div>",
    ]
    if len(offer.qos) > 1:
        parts.append(_select("qos", "Class of service", qos, defaults.get("qos")))
    return "\n".join(parts)


def _select(name: str, label: str, values: Sequence[tuple[str, str]], chosen: Any) -> str:
    wanted = "" if chosen is None else str(chosen)
    options = "".join(
        f'<option value="{escape(value)}"{" selected" if value == wanted else ""}>{escape(text)}</option>'
        for value, text in values
    )
    return (
        f'<div class="mb-3"><label class="form-label" for="carrel-{name}">{escape(label)}</label>'
        f'<select class="form-select form-control" id="carrel-{name}" name="{name}">{options}</select></div>'
    )


def _text(name: str, label: str, value: Any, hint: str) -> str:
    wanted = "" if value is None else str(value)
    return (
        f'<div class="mb-3"><label class="form-label" for="carrel-{name}">{escape(label)}</label>'
        f'<input class="form-control" id="carrel-{name}" name="{name}" value="{escape(wanted)}" '
        f'placeholder="{escape(hint)}"></div>'
    )


def read(form: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What a user chose. Raises `LabRefused` for what the form cannot say."""
    options: dict[str, Any] = {"reserve": bool(form.get("reserve"))}
    for name in ("environment", "image", "gpus", "qos"):
        text = (form.get(name) or [""])[0].strip()
        if text:
            options[name] = text
    if "gpus" in options:
        if not (options["gpus"].isascii() and options["gpus"].isdigit() and len(options["gpus"]) < 5):
            raise LabRefused(f"The number of GPUs is {options['gpus'][:20]!r}. Choose a number.")
        options["gpus"] = int(options["gpus"])
    return options
