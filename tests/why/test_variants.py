"""What a variant has of the first attempt, and what of the second."""

from __future__ import annotations

from typing import Any

import pytest

from carrel.core.comparison import Cause, Kind
from carrel.core.comparison.settings import DETERMINISTIC
from carrel.core.domain.errors import Invalid
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe, InputSpec, TaskSpec
from carrel.core.why import Change, Half, Part, variant_task

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def half(resources: Resources | None = None, *, environment: EnvironmentRecipe | None = None, **known: Any) -> Half:
    names = ("lock", "python", "staged", "seeds", "gpu_type", "read")
    task = {name: known.pop(name) for name in list(known) if name not in names}
    known["inputs"] = known.pop("staged", {})
    spec = {"entry_point": "train.py", "command": "python train.py", "snapshot": "sha256:a", **task}
    return Half(
        task=TaskSpec(**spec, environment=environment or EnvironmentRecipe()), resources=resources or Resources(), **known
    )


def change(kind: Kind, path: str, *, key: str = "", **more: Any) -> Change:
    return Change(
        key=key or f"{kind.value}:{path}", kind=kind, path=path, what=path, before="", after="", cause=Cause.LIKELY, **more
    )


def test_what_is_not_chosen_is_held_at_what_the_first_had() -> None:
    """A number of threads follows from the CPUs: where one of both is changed, the other stays."""
    first = half(Resources(cpus=1), seeds={"OMP_NUM_THREADS": "1"}, variables={"A": "x", "B": "y"})
    second = half(Resources(cpus=4), seeds={"OMP_NUM_THREADS": "4"}, variables={"A": "z"})
    changes = [
        change(Kind.RESOURCE, "cpus"),
        change(Kind.SETTING, "OMP_NUM_THREADS"),
        *(change(Kind.VARIABLE, name) for name in "AB"),
    ]
    made = variant_task(first, second, changes, {"resource:cpus"})
    assert (made.resources.cpus, dict(made.task.variables)) == (4, {"A": "x", "B": "y", "OMP_NUM_THREADS": "1"})
    made = variant_task(first, second, changes, {"setting:OMP_NUM_THREADS", "variable:B"})
    assert (made.resources.cpus, dict(made.task.variables)) == (1, {"A": "x", "OMP_NUM_THREADS": "4"})
    made = variant_task(first, second, changes, {one.key for one in changes})
    assert (made.resources.cpus, dict(made.task.variables)) == (4, {"A": "z", "OMP_NUM_THREADS": "4"})


def test_a_switch_of_the_task_sets_its_variables_itself() -> None:
    first = half(seeds={"PYTHONHASHSEED": "0"})
    second = half(seeds={"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, deterministic_seed=7)
    changes = [change(Kind.SETTING, DETERMINISTIC, also=("CUBLAS_WORKSPACE_CONFIG",))]
    made = variant_task(first, second, changes, {f"setting:{DETERMINISTIC}"})
    assert (made.task.deterministic_seed, dict(made.task.variables)) == (7, {})
    made = variant_task(first, second, changes, ())
    assert (made.task.deterministic_seed, dict(made.task.variables)) == (None, {})


def test_packages_are_taken_one_by_one_from_the_other_lock() -> None:
    recipe = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=("a", "b"))
    first = half(environment=recipe, lock="a==1\nb==1\nc==1\n", python="3.11.2")
    second = half(environment=recipe, lock="a==2\nb==2 \\\n    --hash=sha256:0\nd==2\n", python="3.12.1")
    packages = [change(Kind.PACKAGE, name) for name in "abcd"]
    python = change(Kind.ENVIRONMENT, "python", key="environment:python")
    made = variant_task(first, second, [*packages, python], {"package:b", "package:c", "package:d"})
    assert (made.task.environment.lock, made.task.environment.python) == ("a==1\nb==2 --hash=sha256:0\nd==2\n", "3.11.2")
    made = variant_task(first, second, [*packages, python], {"environment:python"})
    assert (made.task.environment.lock, made.task.environment.python) == (first.lock, "3.12.1")
    whole = change(Kind.ENVIRONMENT, "", key="environment")
    assert variant_task(first, second, [whole], {"environment"}).task.environment.lock == second.lock
    with pytest.raises(Invalid, match="cannot be put together"):
        variant_task(first, half(environment=recipe, lock="-e ./x\nnonsense here\n"), packages, {"package:a"})


def test_packages_of_the_other_lock_are_found_where_it_had_them_from() -> None:
    first = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=("--find-links /old", "a"))
    other = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=("--find-links /new", "--index-url https://x", "a"))
    halves = half(environment=first, lock="a==1\n"), half(environment=other, lock="a==2\n")
    packages = [change(Kind.PACKAGE, "a")]
    made = variant_task(*halves, packages, {"package:a"}).task.environment
    assert made.requirements == ("--find-links /old", "a", "--find-links /new", "--extra-index-url https://x")
    assert variant_task(*halves, packages, ()).task.environment.requirements == first.requirements


def test_inputs_are_pinned_to_what_was_there_and_taken_whole_or_by_file() -> None:
    mine = (InputSpec(path="data", uri="file:///x/data"), InputSpec(path="one.csv", uri="file:///x/one.csv"))
    theirs = (InputSpec(path="data", uri="file:///y/data"), InputSpec(path="one.csv", uri="file:///y/one.csv"))
    places = {"data/a": ONE, "data/b": ONE, "one.csv": ONE}
    first, second = half(inputs=mine, staged=places), half(inputs=theirs, staged=dict.fromkeys(places, TWO))
    data = change(Kind.INPUT, "data", parts=(Part("input:data/a", "", "data/a"), Part("input:data/b", "", "data/b")))
    changes = [data, change(Kind.INPUT, "one.csv")]

    def inputs(*chosen: str) -> list[tuple[str, str, str | None]]:
        made = variant_task(first, second, changes, set(chosen))
        return sorted((item.path, item.uri, item.digest) for item in made.task.inputs)

    assert inputs() == [("data", "file:///x/data", None), ("one.csv", "file:///x/one.csv", ONE)]
    assert inputs("input:one.csv", "input:data") == [("data", "file:///y/data", None), ("one.csv", "file:///y/one.csv", TWO)]
    assert inputs("input:data/b") == [
        ("data/a", "file:///x/data/a", ONE),
        ("data/b", "file:///y/data/b", TWO),
        ("one.csv", "file:///x/one.csv", ONE),
    ]


def test_parameters_change_the_command_and_their_paths_with_it() -> None:
    first = half(
        command="python t.py --lr 1 --data inputs/data/a.csv", parameters={"lr": "1", "data": "file:///a.csv"},
        path_parameters={"inputs/data/a.csv": "file:///a.csv"},
    )  # fmt: skip
    second = half(
        command="python t.py --lr 2 --data inputs/data/b.csv", parameters={"lr": "2", "data": "file:///b.csv"},
        path_parameters={"inputs/data/b.csv": "file:///b.csv"},
    )  # fmt: skip
    changes = [change(Kind.PARAMETER, "lr"), change(Kind.PARAMETER, "data"), change(Kind.COMMAND, "", key="command")]
    made = variant_task(first, second, changes, {"parameter:lr"}).task
    assert (made.command, dict(made.parameters)["lr"]) == ("python t.py --lr 2 --data inputs/data/a.csv", "2")
    made = variant_task(first, second, changes, {"parameter:data", "command"}).task
    assert (made.command, dict(made.path_parameters)) == (
        "python t.py --lr 1 --data inputs/data/b.csv",
        {"inputs/data/b.csv": "file:///b.csv"},
    )


def test_code_is_taken_by_file_and_by_line() -> None:
    texts = {"train.py": ("a\nb\nc\n", "A\nb\nC\n")}
    first = half(read=lambda path: texts[path][0])
    second = half(read=lambda path: texts[path][1])
    parts = (Part("code:train.py#1", "", "train.py"), Part("code:train.py#2", "", "train.py"))
    changes = [change(Kind.CODE, "train.py", parts=parts), change(Kind.CODE, "new.py")]
    made = variant_task(first, second, changes, {"code:train.py#2", "code:new.py"})
    assert (made.code.taken, dict(made.code.texts)) == ({"new.py"}, {"train.py": "a\nb\nC\n"})
    assert variant_task(first, second, changes, ()).code is None


def test_a_type_of_gpu_is_asked_for_of_both() -> None:
    """A job that asked for any GPU got one of some type: a variant asks for that type, or for the other."""
    first, second = half(Resources(gpus=1), gpu_type="h100"), half(Resources(gpus=1), gpu_type="a100")
    changes = [change(Kind.GPU, "", key="gpu")]
    assert variant_task(first, second, changes, ()).resources.gpu_type == "h100"
    assert variant_task(first, second, changes, {"gpu"}).resources.gpu_type == "a100"
    changes = [change(Kind.RESOURCE, name) for name in ("gpus", "gpu_memory")]
    none = half(Resources())
    some = half(Resources(gpus=1, gpu_memory=2**30), gpu_type="a100")
    assert variant_task(some, none, changes, {"resource:gpus"}).resources == Resources()
    assert variant_task(none, some, changes, {"resource:gpus"}).resources == Resources(gpus=1)
