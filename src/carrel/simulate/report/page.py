"""A comparison as one HTML file that needs nothing but a browser: no network, no scripts, the same bytes every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from carrel.core.domain.errors import Invalid
from carrel.simulate.measures import Measures
from carrel.simulate.outcome import Outcome
from carrel.simulate.report import figures, markup, words
from carrel.simulate.report.comparison import Comparison
from carrel.simulate.report.svg import safe
from carrel.simulate.report.table import Table, notebooks_table, numbers_table, policies_table, together_table
from carrel.simulate.report.users import SHOWN, UserRow, user_rows
from carrel.simulate.trace import Trace

#: Of the jobs that were refused by one policy, how many are listed one by one.
_REFUSALS = 5


def write_report(path: Path, comparison: Comparison) -> None:
    """Write the report; a file that is there is replaced. Raises `Invalid` when it cannot be written."""
    try:
        path.write_text(page(comparison), encoding="utf-8", newline="\n")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise Invalid(
            f"{path} cannot be written: {reason}.", remedy="Name a file in a directory that you may write to."
        ) from error


def page(comparison: Comparison) -> str:
    """The report as HTML."""
    measures = comparison.measures()
    sections = [_head(comparison)]
    if measures:
        users = user_rows(measures)
        sections += [_policies(comparison, measures, users), _numbers(measures, users)]
    if comparison.notebooks:
        at = 1 if measures else 0
        sections.insert(1 + at, _notebooks(comparison))
    if comparison.together:
        sections.append(_together(comparison))
    return markup.document(comparison.title, sections)


def _head(comparison: Comparison) -> str:
    trace = comparison.trace
    return (
        f"<h1>{safe(comparison.title)}</h1>\n"
        + markup.paragraph(*_what(comparison))
        + markup.bullets(list(trace.notes))
        + markup.pairs({"Trace": trace.name, **comparison.facts})
    )


def _what(comparison: Comparison) -> Sequence[str]:
    """What was simulated, in sentences."""
    gpus = words.count(comparison.cluster_gpus, "GPU")
    sentences = [_jobs(comparison.trace, gpus)] if comparison.trace.jobs else [f"{comparison.trace.name}, on {gpus}."]
    if comparison.outcomes:
        sentences.append(f"Simulated under {_listed([outcome.policy for outcome in comparison.outcomes], 'policy', 'policies')}.")
    if comparison.notebooks:
        sentences.append(f"Notebooks in {_listed([row.result.mode for row in comparison.notebooks], 'mode', 'modes')}.")
    if comparison.together:
        sentences.append(f"Notebooks and tasks in {_listed([one.mode for one in comparison.together], 'mode', 'modes')}.")
    return sentences


def _jobs(trace: Trace, gpus: str) -> str:
    jobs = trace.jobs
    users = len({job.user for job in jobs})
    span = words.duration(max(job.submitted for job in jobs) - min(job.submitted for job in jobs))
    hours = words.hours(sum(job.gpus * job.duration for job in jobs) / 3600)
    who = words.count(users, "user")
    return f"{words.count(len(jobs), 'job')} of {who}, submitted within {span}, which need {hours} GPU-hours, on {gpus}."


def _listed(names: Sequence[str], one: str, more: str) -> str:
    return f"{len(names)} {one if len(names) == 1 else more}: {'; '.join(names)}"


_FAIRNESS = (
    "Fairness is finish-time fairness: the JCT of a user's jobs over what it would be on an equal part of the GPUs for them"
    " alone, of the user for whom it is largest. At 1 or less nobody would be better off with a part of their own."
)


def _policies(comparison: Comparison, measures: Sequence[Measures], users: Sequence[UserRow]) -> str:
    parts = [
        markup.table(policies_table(measures), "One row a policy"),
        markup.paragraph(
            "A wait is the time in which a job does not run: before its first start, and after it was stopped. JCT is the time"
            " from submission to end. Slowdown is the mean of JCT divided by run time, with run times of 10 s at least.",
            "Used is the share of all GPUs that was in use from the first submission to the last end.",
            *([_FAIRNESS] if len(users) > 1 else []),
            muted=True,
        ),
        *(_refusals(outcome) for outcome in comparison.outcomes if outcome.refused),
        markup.grid(figures.of_policies(comparison, measures, users)),
        *(markup.paragraph(sentence, muted=True) for sentence in figures.left_out(measures, users)),
    ]
    return markup.section("Policies", parts)


def _refusals(outcome: Outcome) -> str:
    reasons = Counter(reason for _, reason in outcome.refused)
    first = {reason: id for id, reason in reversed(outcome.refused)}
    told = [
        f"{reason} (job {first[reason]}{f' and {many - 1:,} more' if many > 1 else ''})"
        for reason, many in reasons.most_common(_REFUSALS)
    ]
    if len(reasons) > _REFUSALS:
        told.append(f"{len(reasons) - _REFUSALS:,} other reasons")
    return markup.paragraph(f"{outcome.policy} refused {words.count(len(outcome.refused), 'job')}: {'; '.join(told)}.")


def _notebooks(comparison: Comparison) -> str:
    rows = comparison.notebooks
    parts = [
        markup.table(notebooks_table(rows), "One row a notebook mode"),
        markup.paragraph(
            "Waits are those of cells that had to ask for GPUs, without the moving of state: of every cell where GPUs are lent"
            " for one cell, of the openings of sessions where GPUs are reserved. The first two columns are the GPUs with which"
            " 95 of 100 such waits are 0, or a minute at most; the others are about the GPUs that there were here. Computing is"
            " the share of the held GPU-hours in which a cell ran.",
            "A warm start finds its state on the GPUs, a cold one has it brought back or made again.",
            muted=True,
        ),
        markup.grid(figures.of_notebooks(rows)),
    ]
    return markup.section("Notebooks", parts)


def _together(comparison: Comparison) -> str:
    modes = comparison.together
    parts = [
        markup.table(together_table(modes), "One column a mode"),
        markup.paragraph(
            "A cell's wait ends when it computes, after all moves; one that still waited at the end counts with its wait so far."
            " Its slowdown is the time from the wish to its end over what it computes; a task's is the time on its GPUs over what"
            f" it computes. Recovered are the GPU-hours in which somebody computed, beyond those of {modes[0].mode}.",
            muted=True,
        ),
        markup.grid(figures.of_together(modes)),
    ]
    return markup.section("Notebooks and tasks on the same GPUs", parts)


def _numbers(measures: Sequence[Measures], users: Sequence[UserRow]) -> str:
    parts = [markup.table(numbers_table(measures), "All numbers, one column a policy")]
    if len(users) > 1:
        content = markup.table(_users_table(measures, users), "One row a user and policy")
        parts.append(markup.folded(f"By user ({SHOWN} at most, the rest summed up)", content))
    return markup.section("All numbers", parts)


def _users_table(measures: Sequence[Measures], users: Sequence[UserRow]) -> Table:
    rows = []
    for row in users:
        for one, of in zip(measures, row.measures, strict=True):
            if of is not None:
                numbers = [
                    words.number(of.jobs),
                    words.hours(of.gpu_hours),
                    words.exact(of.mean_wait),
                    words.exact(of.mean_completion),
                ]
                rows.append([row.name, one.policy, *numbers, words.number(of.mean_slowdown)])
    return Table(["User", "Policy", "Jobs", "GPU-hours", "Mean wait (s)", "Mean JCT (s)", "Mean slowdown"], rows)
