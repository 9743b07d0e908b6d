"""`carrel challenge new`: from a CSV to a directory that `carrel challenge check` takes, and what is wrong with a CSV."""

from __future__ import annotations

import csv
import json
import os
import pty
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import nbclient
import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity import carrel, checked

from carrel import Client
from carrel.cli.main import main
from carrel.core.challenges.making import METRICS
from carrel.core.domain.challenge import SubmissionState
from support.lab_process import LabProcess

HEADER = ("patient", "length", "width", "colour", "kind")
CLASSES = ("accuracy", "balanced_accuracy", "f1_macro", "roc_auc", "log_loss")


def a_csv(place: Path, rows: int = 150, *, seed: int = 1, header: Sequence[str] = HEADER, encoding: str = "utf-8") -> Path:
    """Measurements of patients, ten of each, whose kind the length tells mostly."""
    draw = random.Random(seed)
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w", newline="", encoding=encoding) as stream:
        table = csv.writer(stream)
        table.writerow(header)
        for row in range(rows):
            kind = draw.choice("abc")
            length = "abc".index(kind) + draw.gauss(0, 0.4)
            table.writerow([row // 10, f"{length:.3f}", f"{draw.random():.3f}", draw.choice(["red", "grün", ""]), kind])
    return place


def new(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main(["challenge", "new", *map(str, arguments), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["challenge", "new", *map(str, arguments)]) != 0
    return capsys.readouterr().err


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.quick
def test_each_row_is_in_one_split_and_groups_stay_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = new(
        capsys, a_csv(tmp_path / "data.csv"), "--answer", "kind", "--metric", "accuracy", "--group", "patient",
        "--title", "Kinds of things", "--seed", 7, "--out", tmp_path / "new",
    )  # fmt: skip
    assert made["name"] == "kinds-of-things"
    train = rows_of(tmp_path / "new" / "data/train/train.csv")
    hidden = [rows_of(tmp_path / "new" / f"data/{split}/input/rows.csv") for split in ("public", "private")]
    answers = [rows_of(tmp_path / "new" / f"data/{split}/reference/answers.csv") for split in ("public", "private")]
    assert made["rows"] == {"train": len(train), "public": len(hidden[0]), "private": len(hidden[1])}
    names = [row["row"] for part in (train, *hidden) for row in part]
    assert len(names) == len(set(names)) == 150
    assert [[row["row"] for row in part] for part in hidden] == [[row["row"] for row in part] for part in answers]
    assert all(set(row) == {"row", "length", "width", "colour"} for part in hidden for row in part)
    assert {row["kind"] for part in answers for row in part} == {"a", "b", "c"}
    # Rows of a patient were ten in a row of the CSV: which of them are elsewhere is known by what they measured.
    known = {(row["length"], row["width"]): row["patient"] for row in rows_of(tmp_path / "data.csv")}
    patients = [{known[row["length"], row["width"]] for row in part} for part in (train, *hidden)]
    assert sum(map(len, patients)) == len(set.union(*patients)) == 15


@pytest.mark.quick
def test_the_same_seed_makes_the_same_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = a_csv(tmp_path / "data.csv")

    def made(place: str, seed: int) -> dict[str, bytes]:
        new(capsys, data, "--answer", "kind", "--metric", "accuracy", "--title", "T", "--seed", seed, "--out", tmp_path / place)
        files = [file for file in (tmp_path / place).rglob("*") if file.is_file()]
        return {str(file.relative_to(tmp_path / place)): file.read_bytes() for file in files}

    assert made("one", 1) == made("again", 1) != made("other", 2)


@pytest.mark.quick
@given(seed=st.integers(0, 2**32))
def test_the_name_of_a_row_tells_neither_its_answer_nor_its_place(seed: int) -> None:
    from carrel.core.challenges.making import Wanted, make
    from carrel.core.challenges.table import Table

    table = Table(header=("x", "kind"), rows=tuple((str(row), "ab"[row * 2 // 200]) for row in range(200)))
    wanted = Wanted(answer="kind", metric="accuracy", title="T", begin="2026-01-01", end="2027-01-01", final_end="2027-02-01")
    made = make(table, wanted, random.Random(seed))
    for split in ("public", "private"):
        rows = list(csv.DictReader(made.files[f"data/{split}/input/rows.csv"].splitlines()))
        assert [row["row"] for row in rows] == sorted(row["row"] for row in rows)
        places = [int(row["x"]) for row in rows]
        assert places != sorted(places)
        firsts = sum(place < 100 for place in places[: len(places) // 2])
        assert 1 <= firsts < len(places) // 2  # half of the CSV is of each kind; by chance both are in each half of a split


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (b"", (), "no rows"),
        (b"a,b\n", (), "no rows"),
        ("größe,kind\n1,ä\n".encode("latin-1"), (), "is not UTF-8"),
        ("größe,kind\n1,ä\n".encode("utf-16"), (), "is not UTF-8"),
        (b"a,kind\n1,x\n\0,y\n", (), "NUL"),
        (b"1.5,2,x\n1.5,2,x\n", (), "no header"),
        (b"a,a,kind\n1,2,x\n", (), '2 columns are called "a"'),
        (b"a,,kind\n1,2,x\n", (), "no header"),
        (b"a,kind\n1,x\n2\n", (), "line 3: 1 cells where the header has 2"),
        (b'a,kind\n1,"x\n', (), "Look at the quotes"),
        (b"a,kind\n1,x\n", (), "There are 1 rows"),
        (b"a,kind\n" + b"1,x\n" * 40, (), "the same"),
        (b"a,kind\n" + b"1,x\n2,y\n" * 20 + b"3,\n", (), '1 rows have no "kind", the first is row 41'),
        (b"a,kind\n" + b"1,x\n2,y\n" * 20 + b"3,z\n", (), '"z" is in fewer than 3 rows'),
        (b"a,kind\n" + b"".join(b"1,%d\n" % number for number in range(200)), (), "200 different values"),
        (b"a,kind\n" + b"1,x\n2,y\n" * 20, ("--metric", "rmse"), '"x" is no number'),
        (b"a;kind\n" + b"1;2,5\n2;3,5\n" * 20, ("--metric", "rmse"), '"2,5" is no number, and rmse needs numbers'),
        (b"a;kind\n" + b"1;2,5\n2;3,5\n" * 20, ("--metric", "rmse"), "Write it with a point"),
        (b"a,kind\n" + b"1,x\n2,y\n" * 20, ("--metric", "f1-macro"), 'Did you mean "f1_macro"'),
        (b"a,kind\n" + b"1,x\n2,y\n" * 20, ("--group", "b"), 'no column "b"'),
        (b"a,kind\n" + b"1,x\n2,y\n" * 20, ("--answer", "kint"), 'Did you mean "kind"'),
        (b"a,b,kind\n" + b"1,1,x\n1,2,y\n" * 20, ("--group", "a"), 'fewer than 3 values of "a"'),
        (b"row,kind\n" + b"1,x\n2,y\n" * 20, (), 'called "row"'),
        (b"kind\n" + b"x\ny\n" * 20, (), "no column beside the answer"),
        (b"a,kind\n" + b"1,x\n2,y\n" * 20, ("--end", "2020-01-01"), "is not after today"),
        (b"a,kind\n" + b"1,x\n2,y\n" * 20, ("--name", "A b"), "cannot be a name"),
        (b"a,kind\n" + b"1,x\n2,y\n" * 20, ("--drop", "b"), 'no column "b"'),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)  # fmt: skip
def test_what_is_wrong_with_a_csv_is_said(
    text: bytes, arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.csv").write_bytes(text)
    usual = ("--answer", "kind", "--metric", "accuracy", "--title", "T", "--out", tmp_path / "new")
    assert words in refused(capsys, tmp_path / "data.csv", *usual, *arguments)
    assert not (tmp_path / "new").exists()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("copy", lambda row: row % 2, '"copy" gives the answer away'),
        ("coded", lambda row: "pq"[row % 2], '"coded" gives the answer away'),
        ("contact", lambda row: f"p{row % 9}@example.org", '"contact" looks as if it names people'),
        ("Last name", lambda row: f"p{row % 9}", '"Last name" looks as if it names people'),
        ("number", lambda row: row, '"number" names each row'),
        ("width", lambda row: f'"{row % 7},5"', 'numbers of "width" are written with a comma'),
        ("colour", lambda row: row % 7, ""),
    ],
)
def test_columns_that_give_too_much_away_are_pointed_out(
    name: str, value: Callable[[int], object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{name},x,answer\n" + "".join(f"{value(row)},{row * 37 % 101 / 10},{row % 2}\n" for row in range(90))
    (tmp_path / "data.csv").write_text(text)
    made = new(
        capsys, tmp_path / "data.csv", "--answer", "answer", "--metric", "accuracy", "--title", "T", "--out", tmp_path / "new"
    )
    said = made["remarks"]
    assert isinstance(said, list)
    assert [words in remark for remark in said] == ([True] if words else [])
    again = ("--answer", "answer", "--metric", "accuracy", "--title", "T", "--out", tmp_path / "less", "--drop", name)
    assert new(capsys, tmp_path / "data.csv", *again)["remarks"] == []
    assert name not in (tmp_path / "less" / "data/train/train.csv").read_text()


@pytest.mark.quick
def test_without_a_terminal_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "CSV is missing" in refused(capsys)
    assert "--metric is missing" in refused(capsys, a_csv(tmp_path / "data.csv"), "--answer", "kind")


@pytest.mark.slow
def test_on_a_terminal_it_asks_and_asks_again(tmp_path: Path) -> None:
    """Five questions; an answer that cannot be is asked for again, with what there is."""
    a_csv(tmp_path / "data.csv")
    said, terminal = b"", pty.openpty()
    command = [sys.executable, "-m", "carrel.cli.main", "challenge", "new", "--out", str(tmp_path / "new")]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=terminal[1], stdout=terminal[1], stderr=terminal[1])
    os.close(terminal[1])
    for question, answer in (
        (b"Which CSV", "data.csv"),
        (b"is the answer", "kint"),
        (b"is the answer", "kind"),
        (b"metric", "accuracy"),
        (b"stay together", "patient"),
        (b"title", "Kinds"),
    ):
        while question not in said:
            said += os.read(terminal[0], 1000)
        assert answer != "kind" or b'Did you mean "kind"' in said
        said = b""
        os.write(terminal[0], answer.encode() + b"\n")
    with suppress(OSError):  # its end is an error of a terminal
        while piece := os.read(terminal[0], 1000):
            said += piece
    os.close(terminal[0])
    assert process.wait() == 0
    assert b"The challenge kinds is in" in said


@pytest.mark.quick
def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new").mkdir()
    usual = ("--answer", "kind", "--metric", "accuracy", "--title", "T", "--out", tmp_path / "new")
    assert "is there already" in refused(capsys, a_csv(tmp_path / "data.csv"), *usual)
    assert not [*(tmp_path / "new").iterdir()]


# ---- what was made, run as the lab runs it


def run_program(place: Path, work: Path, program: str, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run a program of a challenge in `work`, which may have a submission, or predictions."""
    shutil.copytree(place / "programs" / program, work, dirs_exist_ok=True)
    (file,) = {"ingestion": ["ingest.py"], "scoring": ["score.py"]}[program]
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return subprocess.run([sys.executable, file], cwd=work, env=environment, capture_output=True, text=True)


def score_of(place: Path, work: Path, code: Path, split: str = "public") -> dict[str, float]:
    shutil.copytree(code, work / "ingestion" / "submission")
    done = run_program(place, work / "ingestion", "ingestion", CARREL_INPUT=place / f"data/{split}/input")
    assert done.returncode == 0, done.stderr
    shutil.copytree(work / "ingestion" / "outputs", work / "scoring" / "predictions")
    done = run_program(place, work / "scoring", "scoring", CARREL_REFERENCE=place / f"data/{split}/reference")
    assert done.returncode == 0, done.stderr
    return dict(json.loads((work / "scoring" / "outputs/scores.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("metric", list(METRICS))
def test_its_programs_score_by_each_metric_and_the_model_beats_the_constant(
    metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "new"
    answer = "kind" if metric in CLASSES else "length"
    new(
        capsys, a_csv(tmp_path / "data.csv", 300), "--answer", answer, "--metric", metric, "--group", "patient",
        "--title", "T", "--seed", 3, "--out", place,
    )  # fmt: skip
    constant = score_of(place, tmp_path / "constant", place / "baselines/constant")
    linear = score_of(place, tmp_path / "linear", place / "baselines/linear")
    assert set(constant) == set(linear) == {metric}
    better = linear[metric] - constant[metric]
    assert better > 0 if METRICS[metric].larger else better < 0
    assert ("range: [0, 1]" in (place / "challenge.yaml").read_text()) is METRICS[metric].bounded
    score_of(place, tmp_path / "tried", place / "baselines/linear", "train/try")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", "importing model.py: AttributeError"),
        ("def fit(rows, answers): return rows.nothing", "fit: AttributeError at submission/model.py:1"),
        ("def fit(rows, answers): pass\ndef predict(model, rows): return rows.index[:3]", "of the shape (3,)"),
        ("def fit(rows, answers): pass\ndef predict(model, rows): raise SystemExit(0)", "predict: SystemExit"),
    ],
)
def test_what_is_wrong_with_code_is_said_in_the_last_line(
    code: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, work = tmp_path / "new", tmp_path / "work"
    new(capsys, a_csv(tmp_path / "data.csv"), "--answer", "kind", "--metric", "accuracy", "--title", "T", "--out", place)
    (work / "submission").mkdir(parents=True)
    (work / "submission/model.py").write_text(code)
    done = run_program(place, work, "ingestion", CARREL_INPUT=place / "data/public/input")
    assert done.returncode == 3
    if code:
        assert said in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["accuracy", "roc_auc", "rmse"])
def test_the_notebook_runs_as_it_is_and_what_it_submits_scores(
    metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "new"
    answer = "kind" if metric in CLASSES else "length"
    new(
        capsys, a_csv(tmp_path / "data.csv", 300), "--answer", answer, "--metric", metric, "--group", "patient",
        "--title", 'Kinds, "new"', "--out", place,
    )  # fmt: skip
    work = Path(shutil.copytree(place / "starter", tmp_path / "starter"))
    (work / "data").symlink_to(place / "data/train")
    begun = {file.name: file.read_text() for file in (work / "submission").iterdir()}  # for those who run no notebook
    notebook = nbformat.read(work / "starter.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(work)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    said = defaultdict(str)
    for output in outputs:
        said[output["output_type"]] += output.get("text", "")
    assert f"{metric}: " in said["stream"]
    assert said["stream"].endswith("carrel challenge submit kinds-new submission\n")
    assert {file.name: file.read_text() for file in (work / "submission").glob("*.py")} == begun
    assert set(score_of(place, tmp_path / "work", work / "submission")) == {metric}


def test_what_was_made_passes_the_check_and_takes_submissions(
    lab: LabProcess, client: Client, person: Callable[[str], Client], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a lab: baselines in both phases, a dry run with its whole log, and a submission; nothing was changed by hand."""
    place = tmp_path / "kinds"
    new(
        capsys, a_csv(tmp_path / "data.csv", 300), "--answer", "kind", "--metric", "f1_macro", "--group", "patient",
        "--title", "Kinds", "--out", place,
    )  # fmt: skip
    client.keep_challenge(place)
    found = {(one.submission.phase, one.submission.baseline): one.submission for one in checked(client, "kinds")}
    assert len(found) == 4
    assert all(one.state is SubmissionState.COMPLETED for one in found.values()), found
    client.publish_challenge("kinds")
    ada = person("ada")
    ada.join_challenge("kinds", accept_rules=True)
    made = ada.try_challenge("kinds", place / "baselines/linear")
    assert [ada.wait(number).state for number in (made.ingestion, made.scoring)] == ["COMPLETED", "COMPLETED"]
    assert '"f1_macro"' in b"".join(ada.log(made.scoring)).decode()
    begun = tmp_path / "begun"
    told = carrel(lab, ada, "challenge", "start", "kinds", str(begun))
    assert f"{lab.url}/challenges/kinds" in told
    assert f"carrel challenge try kinds {begun / 'submission'}" in told
    sent = carrel(lab, ada, "challenge", "submit", "kinds", str(begun / "submission"), "--wait")
    assert "Left in development: 4 today, 99 in all, 1 at once, 20 that may fail today." in sent  # after its end
    (own,) = ada.challenge_submissions("kinds").submissions
    assert own.submission.scores == found["development", "linear"].scores
    # The starter notebook does the same in a session: with the token of a job.
    inside = tmp_path / "inside"
    shutil.copytree(place / "baselines/linear", inside / "submission")
    (inside / "run.py").write_text(
        "import carrel, pathlib\nlab = carrel.Client()\ncode = pathlib.Path('submission')\n"
        "print('tried', lab.wait(lab.try_challenge('kinds', code).scoring).state)\n"
        "print('sent', lab.submit_to_challenge('kinds', code).submission.team)\n"
    )
    job = ada.submit_project(inside / "run.py", include=[inside / "submission"]).id
    ada.wait(job)
    log = b"".join(ada.log(job)).decode()
    assert "tried COMPLETED" in log, log
    assert "sent ada" in log
