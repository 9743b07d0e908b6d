"""From a project directory to the description of a task: MLflow's meaning, strictly."""

import contextlib
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import EnvironmentKind, InputSpec
from carrel.core.snapshots import SnapshotStore, pack
from carrel.core.submission import ResourceOptions, TaskOptions
from carrel.core.tasks import TaskDescription, describe
from support.examples import examples


def project(root: Path, text: str, **files: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "MLproject").write_text(text)
    for name, content in files.items():
        (root / name.replace("__", ".")).write_text(content)
    return root


def shell(command: str, program: str = "sh", **keywords: Any) -> list[str]:
    """Run `command`, which prints words with a zero byte behind each; return the words."""
    done = subprocess.run([program, "-c", command], check=True, capture_output=True, **keywords)
    return done.stdout.decode().split("\0")[:-1]


PRINT = r"printf '%s\0'"

FULL = """
name: digits
python_env: env.yaml
entry_points:
  main:
    parameters:
      epochs: {type: int, default: 5}
      lr: {type: float, default: 0.1}
      note: {default: plain}
      cosine: {type: bool, default: true}
      data: path
    command: "python train.py {epochs} {lr} {note} {cosine} {data}"
  other:
    command: "true"
carrel:
  resources: {gpus: 2, gpu_type: h200, cpus: 8, memory: 16G, time: 02:30:00}
  qos: batch
  account: physics
  experiment: digits
  retries: 3
  preemptible: False
  inputs:
    - {path: data/train.csv, uri: "https://example.org/train.csv", digest: "sha256:%s"}
  outputs: ["results/**", "*.csv"]
  variables: {DEBUG: true, EMPTY: , VERSION: 1.10}
""" % ("ab" * 32)


def test_everything_arrives(tmp_path: Path) -> None:
    root = project(tmp_path, FULL, env__yaml="python: 3.10\ndependencies: [numpy]\n")
    task = describe(root, parameters={"data": "data", "lr": "1e-3", "note": "it's", "extra": "a b"}, arguments=["--flag", "x y"])
    assert task == TaskDescription(
        name="digits",
        entry_point="main",
        command="""python train.py 5 1e-3 'it'"'"'s' True data --extra 'a b' --flag 'x y'""",
        parameters={"epochs": "5", "lr": "1e-3", "note": "it's", "cosine": "True", "data": "data", "extra": "a b"},
        environment=task.environment,
        inputs=(InputSpec(path="data/train.csv", uri="https://example.org/train.csv", digest="sha256:" + "ab" * 32),),
        outputs=("results/**", "*.csv"),
        options=TaskOptions(
            retries=3,
            preemptible=False,
            resources=ResourceOptions(gpus=2, gpu_type="h200", cpus=8, memory=16 * 1024**3, time=9000),
            qos="batch",
            account="physics",
            experiment="digits",
            variables={"DEBUG": "true", "EMPTY": "", "VERSION": "1.10"},
        ),
    )
    assert task.environment.python == "3.10"
    assert task.environment.requirements == ("numpy",)
    assert describe(root, entry_point="other").command == "true"


def test_the_lab_reads_the_same_out_of_the_snapshot(tmp_path: Path) -> None:
    root = project(tmp_path / "code", FULL, env__yaml="dependencies: [-r r.txt]\n", r__txt="numpy\n./pkg\n")
    (root / "pkg").mkdir()
    (root / "pkg" / "pyproject.toml").write_text("")
    packed = pack(root)
    store = SnapshotStore(tmp_path / "store")
    with packed.open() as file:
        store.add(packed.digest, file)
    parameters = {"data": "pkg"}
    assert describe(store.files(packed.digest), parameters=parameters) == describe(root, parameters=parameters)


MISTAKES = {
    "misspelt key": ("parametrs: {}", 'line 1: "parametrs" is not a key', "entry_points"),
    "misspelt in an entry point": (
        'entry_points:\n  main:\n    parametrs: {}\n    command: "true"',
        'line 3: "parametrs" is not a key of entry_points.main',
        '"parameters"',
    ),
    "misspelt in the section": ('carrel:\n  resources:\n    gpu: 1\nentry_points: {main: {command: "x"}}', "line 3", '"gpus"'),
    "unknown type": ("entry_points: {main: {parameters: {a: inti}, command: x}}", '"inti" is not a type', '"int"'),
    "wrong shape": ("entry_points: [main]", "entry_points must be a mapping", ""),
    "wrong shape of the file": ("just text", "must be a mapping", ""),
    "no command": ("entry_points: {main: {parameters: {}}}", 'entry point "main" has no command', ""),
    "wrong default": (
        "entry_points:\n  main:\n    parameters:\n      n: {type: int, default: many}\n    command: x",
        'line 4: the default of "n" is "many", which is not a whole number',
        "",
    ),
    "default is a list": ("entry_points: {main: {parameters: {a: {default: [1]}}, command: x}}", "must be a single value", ""),
    "undeclared placeholder": ("entry_points: {main: {parameters: {lr: float}, command: 'x {rl}'}}", "uses {rl}", '"lr"'),
    "nameless placeholder": ("entry_points: {main: {command: 'x {}'}}", "without a name", "{{ and }}"),
    "format": ("entry_points: {main: {parameters: {a: {default: 1}}, command: 'x {a:>1000000000}'}}", "has a format", ""),
    "attribute": ("entry_points: {main: {parameters: {a: {default: 1}}, command: 'x {a.__class__}'}}", "uses {a.__class__}", ""),
    "single brace": ("entry_points: {main: {command: 'x }'}}", "not a format string", "}}"),
    "not yaml": ("a: [1\nb: 2", "line 2: not YAML", ""),
    "twice": ("name: a\nname: b", 'line 2: "name" is there twice', ""),
    "two environments": ("python_env: MLproject\nconda_env: MLproject", "python_env and conda_env are both there", ""),
    "docker": ("docker_env: {image: 'X Y'}", "not the name of an image", "oci-archive"),
    "docker and conda": ("docker_env: {image: x}\nconda_env: c.yaml", "conda_env and docker_env are both there", ""),
    "databricks": ("databricks_spark_job: {}", "Databricks only", ""),
    "absent environment": ("python_env: nowhere.yaml", '"nowhere.yaml", which is not a file', ""),
    "environment outside": ("python_env: ../../../etc/passwd", "which is not a file", ""),
    "size without unit": ("carrel: {resources: {memory: 8000}}", '"8000" is not a size', '"8000M"'),
    "time without unit": ("carrel: {resources: {time: 30}}", "not a duration", '"30m"'),
    "negative": ("carrel: {resources: {gpus: -1}}", "not a whole number", ""),
    "no cpus": ("carrel: {resources: {cpus: 0}}", "cpus is 0", ""),
    "retries": ("carrel: {retries: 1000}", "retries is 1000", "100"),
    "preemptible": ("carrel: {preemptible: no}", 'carrel.preemptible is "no"', "true or false"),
    "empty": ("carrel:\n  qos:\n", "line 2: carrel.qos is empty", ""),
    "input outside": ("carrel: {inputs: [{path: ../x, uri: 'https://h/x'}]}", "not a place in the working directory", ""),
    "input without uri": ("carrel: {inputs: [{path: x}]}", "has no uri", ""),
    "input without path": ("carrel: {inputs: [{uri: 'https://h/x'}]}", "has no path", ""),
    "input is no URI": ("carrel: {inputs: {x: data/here}}", "not a URI", ""),
    "input with a password": ("carrel: {inputs: {x: 'https://me:secret@h/x'}}", "password in it", ""),
    "inputs in each other": ("carrel: {inputs: {x: 'https://h/x', x/y: 'https://h/y'}}", "each other's way", ""),
    "digest": ("carrel: {inputs: [{path: x, uri: 'https://h/x', digest: md5}]}", "not a digest", ""),
    "output outside": ("carrel: {outputs: ['../*']}", "does not name files in the working directory", ""),
    "variable": ("carrel: {variables: {A-B: 1}}", "not a name of a variable", ""),
    "the lab's variable": ("carrel: {variables: {CARREL_URL: x}}", "the lab's own", ""),
    "too deep": ("[" * 5000, "not YAML", ""),
    "no such entry point": ("entry_points: {train: {command: x}}", 'no entry point "main"', "train"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_name_file_key_and_the_nearest(tmp_path: Path, mistake: str) -> None:
    text, says, remedy = MISTAKES[mistake]
    with pytest.raises(Invalid) as caught:
        describe(project(tmp_path, text))
    assert says in caught.value.message
    assert remedy in caught.value.remedy
    assert "MLproject" in caught.value.message
    assert "secret" not in str(caught.value)


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    project(tmp_path, "")
    (tmp_path / "MLproject").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(Invalid, match="MLproject, line 1: not UTF-8"):
        describe(tmp_path)
    (tmp_path / "MLproject").write_text("x" * 2_000_000)
    with pytest.raises(Invalid, match="MLproject has more than"):
        describe(tmp_path)
    (tmp_path / "MLproject").write_text("name: a")
    (tmp_path / "mlproject").write_text("name: b")
    with pytest.raises(Invalid, match="2 project files"):
        describe(tmp_path)
    with pytest.raises(Invalid, match="not a directory"):
        describe(tmp_path / "absent")


def test_aliases_cannot_explode(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 8)}]}}" for n in range(1, 30))]
    with pytest.raises(Invalid):
        describe(project(tmp_path, "\n".join([*lines, "<<: *a29"])))


def test_merge_keys_mean_what_yaml_says(tmp_path: Path) -> None:
    text = """
entry_points:
  base: &base {parameters: {n: {type: int, default: 1}}, command: "echo {n}"}
  main: {<<: *base, command: "echo main {n}"}
"""
    assert describe(project(tmp_path, text)).command == "echo main 1"


VALUES = [
    ("int", ["5", "-3", "+7", "0"], ["not-an-int", "1.5", "1e3", "", " 5", "1_000", "٥", "5\n"]),
    ("float", ["0.1", "1e-3", "-.5", "3", "inf", "nan", "1."], ["abc", "", "1,5", "0x1p3", "1_0.0", " 1", "."]),
    ("bool", ["true", "False", "1", "no", "ON"], ["maybe", "", "2", "t"]),
    ("string", ["", "anything", "a\nb", "ü"], []),
    ("uri", ["https://h/x", "s3://b/k", "runs:/1/m", "file:///d", "here.txt"], ["nowhere.txt", "/abs", "", "https://u:p@h/"]),
    (
        "path",
        ["https://h/x", "here.txt", ".", "promised/x.csv"],
        ["nowhere.txt", "/etc/passwd", "../x", "~/x", "", "s3://u:p@b/"],
    ),
]


@pytest.mark.parametrize(
    ("kind", "value", "good"), [(k, v, ok) for k, yes, no in VALUES for ok, vs in ((True, yes), (False, no)) for v in vs]
)
def test_types_are_really_checked(tmp_path: Path, kind: str, value: str, good: bool) -> None:
    text = f"entry_points: {{main: {{parameters: {{p: {kind}}}, command: 'x {{p}}'}}}}\ncarrel: {{inputs: {{promised: 'https://h/d'}}}}"
    root = project(tmp_path, text, here__txt="")
    if good:
        assert describe(root, parameters={"p": value}).parameters == {"p": value}
    else:
        with pytest.raises(Invalid, match='"p"'):
            describe(root, parameters={"p": value})


def test_a_missing_parameter_is_named(tmp_path: Path) -> None:
    root = project(tmp_path, "entry_points: {main: {parameters: {lr: float, n: {type: int, default: }}, command: 'x {lr} {n}'}}")
    with pytest.raises(Invalid, match=r"needs a value for lr, n") as caught:
        describe(root, parameters={"lrr": "1"})
    assert "-P lr=VALUE" in caught.value.remedy
    assert "Undeclared: lrr" in caught.value.remedy


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("https://h/a%20b/q%2Fr.csv?x=1#f", "inputs/data/r.csv"),
        ("s3://bucket/dir/", "inputs/data/dir"),
        ("https://host", "inputs/data/data"),
        ("https://host/..", "inputs/data/data"),
        ("https://host/.hidden", "inputs/data/hidden"),
        ("https://host/a b;c", "inputs/data/a_b_c"),
        ("runs:/abc/features.npz", "inputs/data/features.npz"),
    ],
)
def test_a_uri_for_a_path_is_staged(tmp_path: Path, uri: str, place: str) -> None:
    root = project(tmp_path, "entry_points: {main: {parameters: {data: path}, command: 'x {data}'}}")
    task = describe(root, parameters={"data": uri})
    assert task.command == f"x {place}"
    assert task.path_parameters == {place: uri}
    assert task.parameters == {"data": uri}


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=6))
def test_values_reach_the_program_as_they_are(tmp_path: Path, values: list[str]) -> None:
    names = [f"p{n}" for n in range(len(values))]
    places = " ".join(f"{{{name}}} '{{{name}}}' \"{{{name}}}\"" for name in names)
    command = json.dumps(f"{PRINT} {places}")
    text = f"entry_points: {{main: {{parameters: {{{', '.join(f'{name}: string' for name in names)}}}, command: {command}}}}}"
    given = dict(zip(names, values, strict=True))
    task = describe(project(tmp_path, text), parameters=given | {"extra": values[0]}, arguments=values)
    for program in ("sh", "bash"):
        expected = [value for value in values for _ in range(3)] + ["--extra", values[0], *values]
        assert shell(task.command, program) == expected


@pytest.mark.parametrize(
    "command",
    ['echo "$(cat {p})"', "echo `cat {p}`", "cat <<END\n{p}\nEND", "true # {p}", "echo $'{p}'", 'echo "${{HOME:-{p}}}"'],
)
def test_where_a_value_cannot_be_put_safely_only_plain_ones_are_taken(tmp_path: Path, command: str) -> None:
    text = f"entry_points: {{main: {{parameters: {{p: string}}, command: {json.dumps(command)}}}}}"
    root = project(tmp_path, text)
    assert "plain-1.0" in describe(root, parameters={"p": "plain-1.0"}).command
    with pytest.raises(Invalid, match="cannot be put safely"):
        describe(root, parameters={"p": "$(touch owned)"})


SEVERAL = r"""
entry_points:
  main:
    command: |
      # it's a comment
      X=1
      printf '%s\0' "$X" ${{X}} {p}
    parameters: {p: string}
"""


def test_commands_over_several_lines_take_what_is_appended(tmp_path: Path) -> None:
    task = describe(project(tmp_path, SEVERAL), parameters={"p": "a b", "q": "2"})
    assert shell(task.command) == ["1", "1", "a b", "--q", "2"]


def test_any_script_is_an_entry_point(tmp_path: Path) -> None:
    root = project(tmp_path, "name: n", **{"train__py": "", "run me__sh": ""})
    (root / "-odd.py").write_text("import sys; print(*sys.argv[1:], sep='\\0', end='\\0')")
    assert describe(root, entry_point="train.py", parameters={"lr": "0.1"}).command == "python train.py --lr 0.1"
    assert describe(root, entry_point="run me.sh").command == "bash 'run me.sh'"
    task = describe(root, script="-odd.py", arguments=["--lr", "0 1"])
    assert shell(task.command.replace("python", shlex.quote(sys.executable), 1), cwd=root) == ["--lr", "0 1"]
    for missing in ("absent.py", "../x.py", "/etc/x.sh"):
        with pytest.raises(Invalid, match="not in the project"):
            describe(root, entry_point=missing)
    with pytest.raises(Invalid, match="not a script"):
        describe(root, script="MLproject")
    with pytest.raises(Invalid, match="Both"):
        describe(root, script="train.py", entry_point="other")


def test_a_bare_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    task = describe(tmp_path, script="train.py", arguments=["--lr", "0.1"])
    assert (task.name, task.entry_point, task.command) == ("train", "train.py", "python train.py --lr 0.1")
    assert task.environment.kind is EnvironmentKind.NONE
    assert task.outputs == ("outputs/**",)
    with pytest.raises(Invalid, match="no MLproject file") as caught:
        describe(tmp_path)
    assert "train.py" in caught.value.remedy


def test_zero_bytes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    for keywords in ({"parameters": {"a": "\0"}}, {"parameters": {"": "x"}}, {"arguments": ["\0"]}, {"script": "\0.py"}):
        with pytest.raises(Invalid):
            describe(tmp_path, **{"script": "train.py", **keywords})  # type: ignore[arg-type]


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_no_text_is_ever_a_traceback(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "MLproject").write_text(text)
    (tmp_path / "python_env.yaml").write_text(text)
    with contextlib.suppress(CarrelError):
        describe(tmp_path, script="train.py")


def test_overrides() -> None:
    file = ResourceOptions(gpus=2, gpu_type="h200", memory=1024**3)
    assert ResourceOptions(gpus=1).over(file) == ResourceOptions(gpus=1, gpu_type="h200", memory=1024**3)
    assert ResourceOptions(gpus=0).over(file) == ResourceOptions(gpus=0, memory=1024**3)
    assert file.resources(Resources(cpus=4, time=60)) == Resources(cpus=4, time=60, gpus=2, gpu_type="h200", memory=1024**3)
    with pytest.raises(Invalid, match="gpu_type"):
        ResourceOptions(gpu_type="h200").resources(Resources())


def test_reading_needs_neither_mlflow_nor_the_server() -> None:
    heavy = {"mlflow", "pydantic", "fastapi", "pathspec", "httpx"}
    code = f"import sys, carrel.core.tasks, carrel.core.snapshots; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("given", ["batchsize", "batch_size", "Batch-Size", "batch-sise"])
def test_a_parameter_that_is_nearly_declared_is_noted_and_with_strict_refused(tmp_path: Path, given: str) -> None:
    declared = "{batch-size: {type: int, default: 1}, lr: {type: float, default: 0.1}}"
    directory = project(tmp_path, f"entry_points: {{main: {{parameters: {declared}, command: 'x {{lr}}'}}}}")
    noted = describe(directory, parameters={given: "3"})
    assert noted.notes == (
        f'The entry point "main" declares no parameter "{given}": it is passed on as --{given}. Did you mean "batch-size"?',
    )
    assert noted.command == f"x 0.1 --{given} 3"
    with pytest.raises(Invalid, match=f'declares no parameter "{given}"') as caught:
        describe(directory, parameters={given: "3"}, strict=True)
    assert 'Did you mean "batch-size"' in str(caught.value.remedy)
    assert describe(directory, parameters={"batch-size": "3", "momentum": "0.9", "lr": "1"}).notes == ()
    with pytest.raises(Invalid, match="momentum"):
        describe(directory, parameters={"momentum": "0.9"}, strict=True)
    assert describe(directory, parameters={"batch-size": "3"}, strict=True).parameters["batch-size"] == "3"


@pytest.mark.parametrize(
    ("spelling", "wrong"), [("str", None), ("text", None), ("integer", "x"), ("boolean", "x"), ("double", "x")]
)
def test_other_spellings_of_types_mean_the_same(tmp_path: Path, spelling: str, wrong: str | None) -> None:
    directory = project(
        tmp_path, f"entry_points: {{main: {{parameters: {{p: {{type: {spelling}}}, q: str}}, command: 'x {{p}} {{q}}'}}}}"
    )
    assert describe(directory, parameters={"p": "1", "q": "a b"}).command == "x 1 'a b'"
    if wrong is not None:
        with pytest.raises(Invalid, match='"p"'):
            describe(directory, parameters={"p": wrong, "q": ""})


def test_a_value_that_no_program_can_be_started_with_is_refused_before_it_waits(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(Invalid, match=r"The command has 13\d,\d{3} bytes; .* Pass the value of \"long\" in a file"):
        describe(tmp_path, script="train.py", parameters={"short": "1", "long": 130_000 * "x" + 1100 * "y"})
    # The program counts bytes, not characters.
    with pytest.raises(Invalid, match="in a file"):
        describe(tmp_path, script="train.py", arguments=[70_000 * "ö"])
    longest = 131_071 - len("python train.py --long ")
    assert len(describe(tmp_path, script="train.py", parameters={"long": longest * "x"}).command) == 131_071
