"""GPU-hours that there were, and that were used, and what one of them cost."""

from __future__ import annotations

from fractions import Fraction

from carrel.core.domain.errors import Invalid
from carrel.core.gpu_use import End
from carrel.core.worth.costs import gpus_of, hours_in_service
from carrel.core.worth.entered import Entered
from carrel.core.worth.measured import Measured
from carrel.core.worth.quantities import Quantity, Unit
from carrel.core.worth.words import show

GPU_HOUR = Unit((("GPU", 1), ("hour", 1)))
#: What came of GPU-hours of which something is there: the command ended well, or it went on from where it was.
_COMPLETED = (End.COMPLETED, End.CONTINUED)


def add_hours(entered: Entered, measured: Measured) -> None:
    """Add "hours.in_service", "hours.offered", "hours.used", "hours.completed"; "busy" and "utilisation" if known."""
    sheet = entered.sheet
    parts = []
    for id, hardware in entered.of_year("hardware"):
        if hardware.gpus and entered.period.hours(hardware.bought, hardware.retired):
            factors = [gpus_of(entered, id, hardware), hours_in_service(entered, id, hardware)]
            parts.append(sheet.product(f"{id}.gpu_hours", f"GPU-hours of {hardware.name}", factors))
    in_service = sheet.sum("hours.in_service", "GPU-hours in service", parts, GPU_HOUR)
    lost = [entered.figure(id, down, "lost", f"Not offered: {down.name}") for id, down in entered.of_year("downtime")]
    offered = sheet.difference("hours.offered", "GPU-hours offered", in_service, *lost)
    if offered.quantity.value < 0:
        raise Invalid(
            f"[[downtime]] takes more than there was: {show(in_service.quantity)} in service.",
            remedy="Correct `lost`, or the hardware.",
        )
    held = {
        end: sheet.given(f"held.{end}", f"GPU-hours held: {end}", _hours(hours), measured.source)
        for end, hours in sorted(measured.held.items())
    }
    lent = sheet.given("lent", "GPU-hours lent to cells and calls", _hours(measured.lent), measured.source)
    used = sheet.sum("hours.used", "GPU-hours used (held and lent)", [*held.values(), lent], GPU_HOUR)
    completed = sheet.sum(
        "hours.completed",
        "GPU-hours completed (ended well or continued, and lent)",
        [*(held[end] for end in _COMPLETED if end in held), lent],
        GPU_HOUR,
    )
    if measured.observed:
        observed = sheet.given(
            "hours.observed", "GPU-hours held in which GPUs were measured", _hours(measured.observed), measured.source
        )
        busy = sheet.given("hours.busy", "GPU-hours of them in which a kernel ran", _hours(measured.busy), measured.source)
        sheet.product("busy", "Busy, where GPUs were measured", [busy], [observed])
    if offered.quantity.value:
        sheet.product("utilisation", "Utilisation", [used], [offered])
    for name, hours in (("offered", offered), ("used", used), ("completed", completed)):
        if hours.quantity.value:
            sheet.product(f"hour.{name}", f"Cost of a GPU-hour {name}", [sheet["cost"]], [hours])


def _hours(hours: Fraction) -> Quantity:
    return Quantity(hours, GPU_HOUR)
