from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from comparison_records import FILES, LOCK, METRICS, code, compared, digest, record, side
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.comparison import Cause, Code, Kind, Metrics, compare, side_of
from carrel.core.comparison.facts import Known

Change = Callable[[dict[str, Any]], object]


def _last(name: str, value: Any) -> Change:
    return lambda record: record["attempts"][-1].update({name: value})


def _in_attempt(field: str, name: str, value: str) -> Change:
    return lambda record: record["attempts"][-1][field].update({name: value})


def _task(name: str, value: Any) -> Change:
    return lambda record: record["task"].update({name: value})


def _lock(text: str) -> Change:
    return lambda record: record["attempts"][-1].update(environment_lock=digest(text), environment_lock_text=text)


#: What is planted, and as what it is found.
PLANTED: dict[str, tuple[Change, Kind, str, Cause]] = {
    "parameter": (_task("parameters", {"lr": "0.2"}), Kind.PARAMETER, "lr", Cause.LIKELY),
    "new parameter": (_task("parameters", {"lr": "0.1", "x": "1"}), Kind.PARAMETER, "x", Cause.LIKELY),
    "command": (_task("command", "python other.py --lr 0.1"), Kind.COMMAND, "command line", Cause.LIKELY),
    "entry point": (_task("entry_point", "other"), Kind.COMMAND, "entry point", Cause.LIKELY),
    "input": (_last("inputs", {"data.csv": digest("other")}), Kind.INPUT, "data.csv", Cause.LIKELY),
    "variable": (_task("variables", {"MODE": "slow"}), Kind.VARIABLE, "MODE", Cause.LIKELY),
    "seed": (_in_attempt("seeds", "PYTHONHASHSEED", "7"), Kind.SETTING, "PYTHONHASHSEED", Cause.LIKELY),
    "threads": (_in_attempt("seeds", "OMP_NUM_THREADS", "8"), Kind.SETTING, "OMP_NUM_THREADS", Cause.POSSIBLE),
    "a switch that only one has": (_in_attempt("seeds", "MKL_CBWR", "AVX2"), Kind.SETTING, "MKL_CBWR", Cause.POSSIBLE),
    "an imported package": (_lock(LOCK.replace("1.26.4", "2.0.1")), Kind.PACKAGE, "numpy", Cause.LIKELY),
    "another package": (_lock(LOCK.replace("3.7", "3.8")), Kind.PACKAGE, "idna", Cause.POSSIBLE),
    "a package that is gone": (_lock(LOCK.replace("idna==3.7 --hash=sha256:aa\n", "")), Kind.PACKAGE, "idna", Cause.POSSIBLE),
    "files of one version": (_lock(LOCK.replace("aa", "ab")), Kind.PACKAGE, "idna", Cause.POSSIBLE),
    "one file more": (_lock(LOCK.replace("aa", "aa --hash=sha256:ab")), Kind.ENVIRONMENT, "lock", Cause.POSSIBLE),
    "python": (_last("python", "cpython-3.12.1"), Kind.ENVIRONMENT, "python", Cause.POSSIBLE),
    "type of GPU": (_in_attempt("hardware", "gpu_0", "NVIDIA A100, 80 GiB, GPU-1"), Kind.GPU, "gpu_0", Cause.POSSIBLE),
    "another GPU": (_in_attempt("hardware", "gpu_0", "NVIDIA H100, 80 GiB, GPU-2"), Kind.PLACEMENT, "gpu_0", Cause.UNLIKELY),
    "driver": (_in_attempt("hardware", "gpu_driver", "560.2"), Kind.MACHINE, "gpu_driver", Cause.POSSIBLE),
    "kernel": (_in_attempt("hardware", "kernel", "Linux 6.9"), Kind.MACHINE, "kernel", Cause.UNLIKELY),
    "limit": (_in_attempt("hardware", "cgroup_memory", "1 GiB"), Kind.LIMIT, "cgroup_memory", Cause.UNLIKELY),
    "network": (_in_attempt("hardware", "network", "off"), Kind.RESOURCE, "network", Cause.POSSIBLE),
    "GPUs": (lambda record: record["job"]["resources"].update(gpus=2), Kind.RESOURCE, "gpus", Cause.POSSIBLE),
    "memory": (lambda record: record["job"]["resources"].update(memory=2**32), Kind.RESOURCE, "memory", Cause.UNLIKELY),
    "walltime": (lambda record: record["job"]["resources"].update(time=60), Kind.LIMIT, "walltime", Cause.UNLIKELY),
    "node": (_last("node", "node2"), Kind.PLACEMENT, "node", Cause.UNLIKELY),
    "state": (_last("state", "FAILED"), Kind.ATTEMPT, "state", Cause.RESULT),
    "run time": (_last("ended_at", 999.0), Kind.ATTEMPT, "run time", Cause.RESULT),
    "name": (lambda record: record["job"].update(name="other"), Kind.LABEL, "name", Cause.UNLIKELY),
    "commit": (_task("git", {"commit": "dead", "branch": "main", "dirty": False}), Kind.GIT, "commit", Cause.UNLIKELY),
    "no repository": (_task("git", None), Kind.GIT, "commit", Cause.UNLIKELY),
    "output": (_last("outputs", [{"path": "model.pt", "digest": digest("x")}]), Kind.OUTPUT, "model.pt", Cause.RESULT),
    "address": (_task("inputs", [{"path": "data.csv", "uri": "file:/b"}]), Kind.INPUT_ADDRESS, "data.csv", Cause.UNLIKELY),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_difference_is_found_where_it_belongs_and_nothing_else(name: str) -> None:
    change, kind, path, cause = PLANTED[name]
    found = compared(change).differences
    assert (kind, path, cause) in {(one.kind, one.path, one.cause) for one in found}
    others = {(one.kind, one.path) for one in found} - {(kind, path)}
    allowed = {Kind.GIT} if kind is Kind.GIT else set()
    assert {of for of, _ in others} <= allowed, others
    assert all(one.evidence.endswith(".") for one in found)


@given(st.sets(st.sampled_from(sorted(PLANTED)), max_size=8), st.sets(st.sampled_from(sorted(PLANTED)), max_size=4))
def test_what_holds_of_any_two(mine: set[str], theirs: set[str]) -> None:
    def all_of(names: set[str]) -> Change:
        return lambda record: [PLANTED[name][0](record) for name in sorted(names)]

    a, b = side(all_of(mine)), side(all_of(theirs), 2)
    assert compare([a, a]).differences == ()
    there, back = compare([a, b]), compare([b, a])
    plain = [(one.rank, one.kind, one.path, one.values[::-1], one.cause, one.evidence) for one in back.differences]
    assert [(one.rank, one.kind, one.path, one.values, one.cause, one.evidence) for one in there.differences] == plain
    assert there.summary == back.summary
    assert [one.rank for one in there.differences] == list(range(1, len(there.differences) + 1))
    order = [list(Cause).index(one.cause) for one in there.differences]
    assert order == sorted(order)
    three = compare([a, b, a]).differences
    assert [(one.kind, one.path) for one in three] == [(one.kind, one.path) for one in there.differences]
    assert all(one.values[0] == one.values[2] for one in three)


TEXT = st.text(string.ascii_lowercase, min_size=1, max_size=3)


@given(st.dictionaries(TEXT, TEXT, max_size=5), st.dictionaries(TEXT, TEXT, max_size=5))
def test_parameters_that_differ_are_exactly_those_that_are_listed(mine: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    found = compare([side(_task("parameters", mine)), side(_task("parameters", theirs), 2)]).differences
    listed = {one.path: one.values for one in found if one.kind is Kind.PARAMETER}
    assert set(listed) == {name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name)}
    for name, values in listed.items():
        said = [None if value.known is Known.ABSENT else value.text for value in values]
        assert said == [mine.get(name), theirs.get(name)]


# ---- unknown is not equal


LOST: dict[str, tuple[Change, Kind]] = {
    "lock": (_last("environment_lock_text", None), Kind.PACKAGE),
    "environment": (_last("environment_lock", None), Kind.PACKAGE),
    "inputs": (_last("inputs", {}), Kind.INPUT),
    "seeds": (_last("seeds", {"PYTHONHASHSEED": "0"}), Kind.SETTING),
    "machine": (lambda record: record["attempts"][-1]["hardware"].pop("cpu"), Kind.MACHINE),
    "gpus": (lambda record: record["attempts"][-1]["hardware"].pop("gpu_0"), Kind.GPU),
    "outputs": (lambda record: record["attempts"][-1].update(uncollected=True, outputs=[]), Kind.OUTPUT),
    "attempt": (lambda record: record.update(attempts=[]), Kind.SETTING),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_what_a_record_lacks_is_said_to_be_unknown_and_neither_equal_nor_different(name: str) -> None:
    change, kind = LOST[name]
    found = compared(change)
    assert [one for one in found.differences if one.kind is kind] == []
    lacking = [one for one in found.not_known if kind in one.kinds]
    assert lacking, found.not_known
    assert all(one.labels == ("2",) and one.why.endswith(".") for one in lacking)
    nothing = found.summary[-1]
    assert "may differ" in nothing


def test_the_third_of_three_may_be_unknown_where_two_differ() -> None:
    sides = [side(), side(_lock(LOCK.replace("3.7", "3.8")), 2), side(_last("environment_lock_text", None), 3)]
    (idna,) = [one for one in compare(sides).differences if one.kind is Kind.PACKAGE]
    assert [value.known for value in idna.values] == [Known.VALUE, Known.VALUE, Known.UNKNOWN]
    assert idna.values[2].text == "Its lock is not kept any more."


def test_values_of_secrets_are_unknown() -> None:
    found = compare([side(_task("secrets", ["KEY"])), side(_task("secrets", ["KEY"]), 2)])
    assert found.differences == ()
    (one,) = found.not_known
    assert (one.kinds, one.path, one.labels) == ((Kind.VARIABLE,), "KEY", ("1", "2"))


# ---- code


def _with(**files: str) -> dict[str, Any]:
    changed = {**FILES, **{name.replace("__", "."): text for name, text in files.items()}}
    return {"code": code(changed)}


def _other_code(record: dict[str, Any]) -> None:
    record["task"]["snapshot"] = digest("other")


@pytest.mark.parametrize(
    ("path", "text", "cause", "evidence"),
    [
        ("train__py", FILES["train.py"].replace("float32", "float64"), Cause.LIKELY, "The command names it."),
        ("model__py", FILES["model.py"].replace("10", "20"), Cause.LIKELY, "Train.py imports it."),
        ("config__yaml", "width: 20\n", Cause.LIKELY, "train.py, which the command reaches, names it."),
        ("plot__py", "print('another')\n", Cause.UNLIKELY, "Neither the command nor what it imports names this file."),
        ("README__md", "Train it.\n", Cause.UNLIKELY, "Neither the command nor what it imports names this file."),
        ("train__py", FILES["train.py"] + "\n# done\n", Cause.UNLIKELY, "Only lines that are empty or begin with # differ."),
    ],
)
def test_a_file_is_ranked_by_how_the_command_reaches_it(path: str, text: str, cause: Cause, evidence: str) -> None:
    found = compared(_other_code, **_with(**{path: text})).differences
    (one,) = [one for one in found if one.kind is Kind.CODE]
    assert one.path == path.replace("__", ".")
    assert (one.cause, one.evidence.lower()) == (cause, evidence.lower())
    (change,) = one.changes
    assert change.label == "2"
    assert change.added >= 1
    assert change.hunks[0].startswith("@@ -")


def test_code_that_the_command_runs_stands_before_a_node_of_the_same_type() -> None:
    def change(record: dict[str, Any]) -> None:
        _other_code(record)
        record["attempts"][-1]["node"] = "node2"

    found = compared(change, **_with(train__py="print(2)\n"))
    assert [(one.kind, one.path) for one in found.differences] == [(Kind.CODE, "train.py"), (Kind.PLACEMENT, "node")]
    assert found.differences[1].evidence == "Another node; what is known of its GPUs and processors does not differ."
    assert found.summary[-1] == "First to look at: code train.py. The command names it."


def test_code_whose_files_are_not_known_differs_as_a_whole() -> None:
    found = compared(_other_code, code=Code(missing="It is not kept any more."))
    (one,) = found.differences
    assert (one.kind, one.path, one.evidence) == (Kind.CODE, "", "The code differs; in which files is not known.")
    assert [(lacking.kinds, lacking.why) for lacking in found.not_known if Kind.CODE in lacking.kinds] == [
        ((Kind.CODE,), "It is not kept any more.")
    ]


def test_imports_from_packages_and_of_modules_run_with_m() -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/__main__.py": "from . import deep\nfrom .sub.leaf import x\n",
        "pkg/deep.py": "1\n",
        "pkg/sub/leaf.py": "from ..deep import y\nimport pkg.far as far\n",
        "pkg/far.py": "1\n",
    }
    for path in ("pkg/deep.py", "pkg/sub/leaf.py", "pkg/far.py", "pkg/__main__.py"):
        sides = [
            side(_task("command", "cd . && python -m pkg"), code=code(files)),
            side(_task("command", "cd . && python -m pkg"), 2, code=code({**files, path: files[path] + "z = 1\n"})),
        ]
        (one,) = [one for one in compare(sides).differences if one.kind is Kind.CODE]
        assert (one.path, one.cause) == (path, Cause.LIKELY)


def test_a_command_that_names_no_file_does_not_make_its_code_unlikely() -> None:
    sides = [side(_task("command", "make")), side(_task("command", "make"), 2, **_with(plot__py="2\n"))]
    (one,) = compare(sides).differences
    assert one.cause is Cause.POSSIBLE
    assert one.evidence == "The command names no file of the code, so what it runs is not known."


def test_a_command_that_differs_only_by_its_parameters_is_not_listed_beside_them() -> None:
    def change(record: dict[str, Any]) -> None:
        record["task"] |= {"parameters": {"lr": "0.25"}, "command": "python train.py --lr 0.25"}

    assert [(one.kind, one.path) for one in compared(change).differences] == [(Kind.PARAMETER, "lr")]
    both = compared(lambda record: (change(record), record["task"].update(command="python other.py --lr 0.25")))
    assert {one.kind for one in both.differences} == {Kind.PARAMETER, Kind.COMMAND}


# ---- metrics


def _curve(**values: Any) -> Metrics:
    return replace(METRICS, **values)


def test_curves_part_at_a_step_even_where_they_end_at_the_same_value() -> None:
    (one,) = compared(metrics=_curve(curves={"loss": {0: 1.0, 1: 0.8, 2: 0.5}})).differences
    assert (one.kind, one.path, one.evidence) == (Kind.METRIC, "loss", "The curves part at step 1.")
    (one,) = compared(metrics=_curve(last={"loss": 0.4}, curves={"loss": {0: 1.0, 1: 0.7, 2: 0.5, 3: 0.4}})).differences
    assert one.evidence == "Equal at all 3 steps that they share; one goes on."
    same = _curve(last={"loss": float("nan")}, curves={"loss": {0: float("nan")}})
    assert compare([side(metrics=same), side(number=2, metrics=same)]).differences == ()


def test_the_curve_that_parts_first_leads_the_summary_and_measurements_of_the_machine_are_no_results() -> None:
    found = compared(metrics=_curve(last={"loss": 0.4, "system/cpu": 3.0}, parameters={"lr": "0.1", "width": "20"}))
    assert [(one.kind, one.path) for one in found.differences] == [(Kind.LOGGED_PARAMETER, "width"), (Kind.METRIC, "loss")]
    assert found.summary == (
        "Results differ: metric loss.",
        "First to look at: logged parameter width. The program logged it as a parameter of its run.",
    )


def test_what_only_one_program_logged_does_not_stand_before_the_command() -> None:
    found = compared(_task("command", "python other.py"), metrics=Metrics(parameters={"depth": "3"}))
    assert [(one.kind, one.path, one.cause) for one in found.differences] == [
        (Kind.COMMAND, "command line", Cause.LIKELY),
        (Kind.LOGGED_PARAMETER, "depth", Cause.POSSIBLE),
        (Kind.LOGGED_PARAMETER, "width", Cause.POSSIBLE),
        (Kind.METRIC, "loss", Cause.RESULT),
    ]
    assert {one.evidence for one in found.differences[1:]} == {"Not all of them have it."}


def test_metrics_that_are_not_known() -> None:
    found = compared(metrics=Metrics(missing="MLflow does not answer."))
    assert found.differences == ()
    assert [one.kinds for one in found.not_known] == [(Kind.LOGGED_PARAMETER, Kind.METRIC)]


def test_two_attempts_of_one_job() -> None:
    both = record()
    both["attempts"].append({**both["attempts"][0], "number": 2, "node": "node2"})
    sides = [side_of(both, number, label=f"1:{number}", code=code(), metrics=METRICS) for number in (1, 2)]
    found = compare(sides).differences
    assert [(one.kind, one.path) for one in found] == [(Kind.ATTEMPT, "number"), (Kind.PLACEMENT, "node")]


def test_the_variable_that_the_program_names_is_first() -> None:
    """Of others those that Python or the system reads, then those of which nothing is known."""
    files = FILES | {"train.py": "import os\nrate = float(os.environ.get('WARMUP', '1'))\n"}
    one = side(_task("variables", {}), code=code(files))
    two = side(_task("variables", {"A_NOTE": "x", "TZ": "UTC", "WARMUP": "2"}), 2, code=code(files))
    found = compare([one, two])
    assert [each.path for each in found.differences if each.kind is Kind.VARIABLE] == ["WARMUP", "TZ", "A_NOTE"]
    assert "train.py names it" in found.differences[0].evidence
