"""How the figures are made, in sentences: the page and docs/roi.md have the same."""

from __future__ import annotations

METHODS = (
    "Every figure was entered by the site with its source, measured by the lab, or calculated from such figures by "
    "the formula that stands beside it. Nothing is assumed by the program.",
    "Money and shares are calculated exactly and rounded only where they are shown.",
    "Days are those of UTC. The report covers the days of the year that are over, from the first day of the lab's "
    "records on. Each calendar year counts as one year, and a day as its part of that year.",
    "Hardware loses its value in a straight line from the day on which it was bought, over its life, also when it is "
    "retired before. What it is worth afterwards, interest and taxes do not count.",
    "Electricity is what machines draw on average while they are in service, times hours, times the price of a kWh. "
    "It does not depend on how much they are used. Cooling is a part of it, or what was entered as its cost.",
    "GPU-hours offered are GPUs times hours in service, less the downtime that was entered. A slice of a GPU is one "
    "where the lab counts it as one.",
    "GPU-hours used are those that attempts held, whatever came of them, and those that were lent to cells of notebooks "
    "and to calls. For how much of the time a kernel ran is known of the hours in which GPUs were measured (NVML's "
    "utilisation), and stands beside them; no cost is calculated from it.",
    "GPU-hours completed are those of commands that ended with exit code 0 or went on from a checkpoint, and those "
    "that were lent. Reserved sessions, failed, cancelled and lost work are not among them. Whether a result was of "
    "use is not known.",
    "On demand, a cloud is paid for the GPU-hours that were used; reserved, for all GPUs in service for the whole "
    "period. Data that would leave and stay are added where the site has entered them. A GPU-hour elsewhere is taken "
    "to do what one here does: the site chooses price lists of which that is true.",
    "The break-even is the utilisation at which the lab costs what the cloud costs on demand: the cost of the period "
    "less what the cloud takes for data, over what all GPU-hours offered would cost there.",
    "For sensitivity, each assumption alone is changed down and up by its range, and all is calculated again. Ranges "
    "say nothing of how likely a value is.",
    "The award of a grant is spread evenly over its days. That a grant used the GPUs does not say that it would not "
    "have been given without them.",
)
