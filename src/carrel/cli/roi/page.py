"""The report as one HTML file: two pages for those who decide, then every figure with what is behind it."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.cli.roi import markup, plots
from carrel.cli.roi.svg import safe, tag
from carrel.core.worth import Assessment, Cloud, Figure, Return, difference_in_words, show

#: What the tables of the cost file are called on the page, and the heads of their columns.
_RETURNS = {
    "people": ("People who used the lab", ("Status", "Department")),
    "grants": ("Grants", ("Grant", "Funder")),
    "publications": ("Publications", ("Title", "DOI", "Jobs")),
    "courses": ("Courses", ("Course",)),
    "partners": ("Partners outside", ("Partner",)),
}
_FACTS = (
    ("Cost", "cost"),
    ("GPU-hours offered", "hours.offered"),
    ("GPU-hours used", "hours.used"),
    ("Utilisation", "utilisation"),
    ("Busy, where GPUs were measured", "busy"),
    ("A GPU-hour used cost", "hour.used"),
    ("A GPU-hour completed cost", "hour.completed"),
    ("People who used the lab", "people"),
    ("Publications", "publications"),
    ("People in courses", "courses.people"),
    ("Awards of grants, in the period", "grants.period"),
)


def page(found: Assessment, *, costs: str, sha256: str, simulated: bool) -> str:
    """The report; `costs` is the name of the cost file."""
    sections = [
        _summary(found, simulated=simulated),
        _comparison(found),
        _leaf(_sensitivity(found)),
        _gains(found),
        _notes(found),
        _leaf(_casc(found)),
        _figures(found),
        _outcomes(found),
        _methods(costs, sha256),
    ]
    return markup.document(_title(found), sections, about="return on investment")


def _title(found: Assessment) -> str:
    return f"{found.model.lab.name}: what the GPUs cost and were worth, {found.period.year}"


def _leaf(section: str) -> str:
    """It begins on a new page of paper."""
    return section.replace("<section>", '<section class="leaf">', 1)


def _summary(found: Assessment, *, simulated: bool) -> str:
    sheet, period = found.sheet, found.period
    sentences = [f"From {period.begin} to {period.last}, the GPUs cost {show(sheet['cost'].quantity)}."]
    used, of_all, hour = sheet["hours.used"], sheet.get("utilisation"), sheet.get("hour.used")
    if of_all is not None and hour is not None:
        share = show(of_all.quantity)
        sentences.append(f"{show(used.quantity)} were used, {share} of those offered: one cost {show(hour.quantity)}.")
    sentences += [_cloud_sentence(cloud) for cloud in found.clouds]
    facts = {name: show(figure.quantity) for name, id in _FACTS if (figure := sheet.get(id)) is not None}
    warning = tag("p", "The GPUs of this lab are simulated. What it measured is no use of real ones.", class_="warning")
    parts = [
        f"<h1>{safe(_title(found))}</h1>\n",
        warning if simulated else "",
        markup.paragraph(*(one.replace(" %", "\N{NO-BREAK SPACE}%") for one in sentences)),
        markup.pairs(facts),
    ]
    return "".join(parts)


def _cloud_sentence(cloud: Cloud) -> str:
    told = [
        f"{difference_in_words(difference)} {how}"
        for how, difference in (("on demand", cloud.on_demand_difference), ("reserved", cloud.reserved_difference))
        if difference is not None
    ]
    even = "" if cloud.break_even is None else f"; on demand, it is {_even(cloud.break_even)}"
    return f"{cloud.name} would have cost {' and '.join(told)}{even}."


def _even(figure: Figure) -> str:
    value = figure.quantity.value
    if value > 1:
        return "cheaper at any utilisation"
    return f"cheaper below a utilisation of {show(figure.quantity)}" if value > 0 else "dearer at any utilisation"


def _comparison(found: Assessment) -> str:
    shown = []
    if found.kinds:
        shown.append(markup.figure("Cost by kind", plots.costs(found), "Of the period. Hardware is its depreciation."))
    drawn = plots.lines(found)
    if found.sheet.get("utilisation") is not None and len(drawn) > 1:
        note = "Where the lab's line meets another, both cost as much. To the right of it the lab costs less."
        picture = plots.break_even(found, drawn)
        shown.append(markup.figure("Cost by utilisation", picture, note, markup.legend([one.name for one in drawn])))
    parts = [markup.grid(shown)] if shown else []
    rows = [
        [
            cost.name,
            _ref(cost),
            _ref(difference),
            _ref(cloud.break_even if how == "on_demand" else None),
            _ref(cloud.value_for_cost if how == "on_demand" else None),
            safe(cloud.source),
        ]
        for cloud in found.clouds
        for how, cost, difference in (
            ("on_demand", cloud.on_demand, cloud.on_demand_difference),
            ("reserved", cloud.reserved, cloud.reserved_difference),
        )
        if cost is not None
    ]
    if rows:
        heads = ["Price list", "Would have cost", "Less the lab's cost", "Break-even", "Market value over cost", "Source"]
        parts.append(_table(heads, rows, "What the same would have cost elsewhere", numbers=(1, 2, 3, 4)))
    return markup.section("What it cost, and what the same would have cost elsewhere", parts) if parts else ""


def _sensitivity(found: Assessment) -> str:
    figure = found.sheet[found.target]
    if not any(one.swing(found.target) for one in found.varied):
        none = "No range of an assumption is entered, or none changes anything."
        return markup.section("If assumptions are wrong", [markup.paragraph(none)])
    model = found.model.sensitivity
    said = f" {show(model.range)} where an entry says nothing else ({model.source})." if model is not None else ""
    note = f"Each assumption alone, down and up by its range.{said} The line in the middle: {show(figure.quantity)}."
    legend = markup.legend(["low end of the range", "high end of the range"])
    # Bars, not lines.
    legend = legend.replace("<path", '<path stroke-width="8"').replace(' stroke-dasharray="7 3"', "")
    picture = tag(
        "div", markup.figure(f"{figure.name}: what matters most", plots.tornado(found), note, legend), class_="wide-plot"
    )
    return markup.section("If assumptions are wrong", [picture])


def _gains(found: Assessment) -> str:
    parts = []
    for table, (heading, heads) in _RETURNS.items():
        rows = [row for row in found.returns if row.table == table]
        if rows:
            parts += [f"<h3>{heading}</h3>\n", _returns(heading, heads, rows)]
    if not parts:
        parts = [markup.paragraph("No people, grants, publications, courses or partners are entered for this year.")]
    return markup.section("What they were good for", parts)


def _returns(heading: str, heads: Sequence[str], rows: Sequence[Return]) -> str:
    told = [
        [
            *(safe(word) for word in row.words),
            "<br>".join(f"{safe(one.name.rpartition(': ')[2])}: {_ref(one)}" for one in row.figures),
        ]
        for row in rows
    ]
    figures = any(row.figures for row in rows)
    cells = [[*row[: len(heads)], *([row[-1]] if figures else []), safe(of.source)] for row, of in zip(told, rows, strict=True)]
    return _table([*heads, *(["Figures"] if figures else []), "Source"], cells, heading)


def _notes(found: Assessment) -> str:
    notes = [*found.notes, "No gain is turned into money: what would have been without these GPUs, nobody has measured."]
    return markup.section("What to know when reading this", [markup.bullets(notes)])


def _casc(found: Assessment) -> str:
    rows = [[safe(one.text), safe(one.answer or "Not answered."), safe(one.source)] for one in found.questions]
    note = "The questions of the first survey of the Coalition for Academic Scientific Computation, as its abstract has them."
    table = _table(["Question", "Answer", "Figures or source"], rows, "Questions of CASC's survey")
    return markup.section("Questions of CASC's survey", [table, markup.paragraph(note, muted=True)])


def _figures(found: Assessment) -> str:
    rows = [[safe(one.name), _id(one.id), safe(show(one.quantity)), _behind(one, found)] for one in found.sheet]
    ids = [one.id for one in found.sheet]
    table = _table(["Figure", "Id", "Value", "Formula, or source"], rows, "Every figure", numbers=(2,), ids=ids)
    note = "Values are rounded here; with all their digits they are in the CSV and JSON of this report."
    return markup.section("Every figure, with what is behind it", [markup.paragraph(note, muted=True), table])


def _id(id: str) -> str:
    """An id, which may be broken after its dots."""
    return f"<code>{safe(id).replace('.', '.<wbr>')}</code>"


def _behind(figure: Figure, found: Assessment) -> str:
    if figure.source:
        return safe(figure.source)
    links = {id: f'<a href="#{safe(id)}">{safe(id)}</a>' for id in figure.inputs if found.sheet.get(id) is not None}
    return " ".join(links.get(word, safe(word)) for word in figure.formula.split(" "))


def _outcomes(found: Assessment) -> str:
    if not found.varied:
        return ""
    targets = list(found.varied[0].outcomes)
    rows = [
        [
            f"{safe(one.name)} {_id(one.id)}",
            f"{safe(show(one.low))}<br>{safe(show(one.high))}",
            *(f"{safe(show(low))}<br>{safe(show(high))}" for low, high in (one.outcomes[target] for target in targets)),
        ]
        for one in found.varied
    ]
    heads = ["Assumption", "From, to", *(found.sheet[target].name for target in targets)]
    table = _table(heads, rows, "Other assumptions", numbers=range(1, len(heads)))
    return markup.section("What comes of other assumptions", [table])


def _methods(costs: str, sha256: str) -> str:
    used = [f"The cost file of this report is {costs}, with the SHA-256 {sha256}."]
    return markup.section("Methods", [markup.bullets([*METHODS, *used])])


def _ref(figure: Figure | None) -> str:
    return "–" if figure is None else f'<a href="#{safe(figure.id)}">{safe(show(figure.quantity))}</a>'


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    *,
    numbers: Sequence[int] = (),
    ids: Sequence[str] = (),
) -> str:
    """A table whose cells are markup; `ids` are those of its rows."""
    head = "".join(tag("th", safe(each), scope="col") for each in heads)
    body = "".join(
        tag(
            "tr",
            "".join(tag("td", cell, class_="num" if column in numbers else None) for column, cell in enumerate(row)),
            id=ids[place] if ids else None,
        )
        + "\n"
        for place, row in enumerate(rows)
    )
    whole = f"{tag('caption', safe(caption))}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>"
    table = tag("table", whole, class_="words")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption) + "\n"


#: How the figures are made, in sentences: the page and docs/roi.md have the same.
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
    "The market value is what a price list takes on demand for the GPU-hours used and the data, and what the services "
    "that the site has entered would cost; over the cost of the period it is the return on investment as XSEDE "
    "calculated it (Stewart et al., 2023).",
    "For sensitivity, each assumption alone is changed down and up by its range, and all is calculated again. Ranges "
    "say nothing of how likely a value is.",
    "The award of a grant is spread evenly over its days. That a grant used the GPUs does not say that it would not "
    "have been given without them.",
    "Groups of fewer than five people are told with others only, and not at all where these are as few. GPU-hours of grants, "
    "courses and partners are told where at least five people used each of their accounts.",
)
