"""`carrel export`, `replay` and `cite`, and the examples of their page: two labs, a file, and nothing else between them."""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import PATIENCE, CommandLine, script

from carrel.client import Client
from carrel.core.domain.errors import NotFound
from support.lab_process import LabProcess, start_lab

PAGE = Path(__file__).parents[2] / "docs" / "replay.md"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """A lab that has never seen any of it."""
    running = start_lab(tmp_path_factory.mktemp("elsewhere") / "home", "--cpus", "4", simulate_gpus=0)
    yield running
    running.end_jobs()
    running.stop()


@pytest.fixture
def there(elsewhere: LabProcess, tmp_path: Path) -> CommandLine:
    """The command line of somebody in that lab, in a directory where nothing is."""
    empty = tmp_path / "empty"
    empty.mkdir()
    return CommandLine({"CARREL_URL": elsewhere.url, "CARREL_TOKEN": elsewhere.token, "CARREL_HOME": "/nonexistent"}, empty)


def done(client: Client, directory: Path, text: str, **options: object) -> int:
    job = client.submit_project(script(directory, text, "task.sh"), **{"name": "replayed", **options})  # type: ignore[arg-type]
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    return job.id


def plain(text: str) -> list[str]:
    """Lines without what differs between any two runs."""
    text = re.sub(r"(?i:job) \d+", "job N", text)
    text = re.sub(r"lab [0-9a-f]{12}", "lab L", text)
    return re.sub(r"\d{4}-\d\d-\d\d; code sha256:(?:[0-9a-f]{64}|…)", "DAY; code C", text).splitlines()


@pytest.mark.gate
def test_the_examples_of_the_page_give_what_the_page_says(carrel: CommandLine, there: CommandLine, tmp_path: Path) -> None:
    page = PAGE.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    here, other, cited = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    first, second = (shlex.split(line) for line in re.findall(r"^\$ carrel (.*)$", here, re.MULTILINE))
    number = carrel("submit", "--json", *first[1:], cwd=tmp_path).json["id"]
    assert carrel("logs", "-f", str(number)).code == 0
    ran = carrel("export", str(number), *second[2:], cwd=tmp_path)
    assert plain(ran.out)[0] == plain(here)[-1]
    (line,) = re.findall(r"^\$ carrel replay (.*)$", other, re.MULTILINE)
    ran = there("replay", str(tmp_path / line))
    assert (ran.code, plain(ran.out)) == (0, plain(other)[1:]), ran.err
    assert plain(carrel("cite", str(number)).out) == plain(cited)[1:]


def test_a_task_is_the_same_in_another_lab(
    carrel: CommandLine, client: Client, there: CommandLine, elsewhere: LabProcess, tmp_path: Path
) -> None:
    """Variables, secrets by name, path parameters, inputs by digest, outputs by pattern, arguments, the executable bit."""
    data = tmp_path / "data.txt"
    data.write_text("1 2 3\n")
    code = tmp_path / "code"
    code.mkdir()
    (code / "tool").write_text('#!/bin/sh\ncat in/data.txt "$1" > results.txt; echo $MODE $3 \'|\' "$2" >> results.txt\n')
    (code / "tool").chmod(0o755)
    (code / "MLproject").write_text(
        "name: whole\nentry_points:\n  main:\n    parameters:\n      table: path\n      word: {default: a b}\n"
        "    command: './tool {table} {word}'\n"
        f"carrel:\n  variables: {{MODE: fast}}\n  inputs: {{in/data.txt: 'file:{data}'}}\n  outputs: [results.txt]\n"
        "  resources: {memory: 300M, time: 2m}\n"
    )
    job = client.submit_project(code, parameters={"table": f"file:{data}", "more": "x; y"}, retries=1)
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    crate = tmp_path / "crate.zip"
    assert carrel("export", str(job.id), "-o", str(crate)).code == 0
    ran = there("replay", str(crate), "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["agreement"], ran.json["outputs"], ran.json["conditions"]) == ("identical", 1, [])
    with Client(url=elsewhere.url, token=elsewhere.token) as other:
        record, again = client.record(job.id), other.record(ran.json["job"])
        assert again["task"]["replay_of"] == {"lab": record["lab"], "job": job.id}
        assert other.job(ran.json["job"]).replay_of == f"job {job.id} of the lab {record['lab']}"
        for name in ("command", "snapshot", "parameters", "outputs", "variables", "entry_point"):
            assert again["task"][name] == record["task"][name], name
        assert again["job"]["resources"] == record["job"]["resources"]
        assert again["attempts"][-1]["inputs"] == record["attempts"][-1]["inputs"]
    assert "replays" in there("show", str(ran.json["job"])).out
    # An input that is another one now is not taken.
    data.write_text("1 2 4\n")
    ran = there("replay", str(crate))
    assert ran.code == 1
    assert "is FAILED: The input in/data.txt" in ran.out
    moved = tmp_path / "moved.txt"
    moved.write_text("1 2 3\n")
    places = list(record["attempts"][-1]["inputs"])
    ran = there("replay", str(crate), *(word for path in places for word in ("--input", f"{path}=file:{moved}")))
    assert (ran.code, "Bit-identical" in ran.out) == (0, True)
    assert there("replay", str(crate), "--input", "x=file:/y").code == 2
    assert there("replay", str(crate), "--input", "x").code == 2


def test_the_code_of_a_crate_gets_no_secret_that_was_not_named(
    carrel: CommandLine, client: Client, there: CommandLine, elsewhere: LabProcess, tmp_path: Path
) -> None:
    client.set_secret("OURS", "x")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "MLproject").write_text(
        "name: curious\nentry_points:\n  main:\n    command: 'echo $OURS > outputs/got'\ncarrel:\n  secrets: [OURS]\n"
        "  resources: {memory: 300M, time: 2m}\n"
    )
    job = client.submit_project(tmp_path / "code")
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    crate = tmp_path / "crate.zip"
    assert carrel("export", str(job.id), "-o", str(crate)).code == 0
    with Client(url=elsewhere.url, token=elsewhere.token) as other:
        other.set_secret("OURS", "theirs")
        before = len(list(other.jobs("all", limit=None)))
        for words in ((), ("--secret", "OTHER")):
            ran = there("replay", str(crate), *words)
            assert (ran.code, "would have them" in ran.err, "--secret OURS" in ran.err) == (2, True, True)
        assert len(list(other.jobs("all", limit=None))) == before
    ran = there("replay", str(crate), "--secret", "OURS")
    assert (ran.code, "Different" in ran.out) == (1, True), "it had another one"
    assert carrel("replay", str(job.id)).code == 0


def test_what_comes_out_otherwise_is_said(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    number = done(client, tmp_path / "a", "echo $CARREL_JOB_ID > outputs/r; echo same > outputs/s\n")
    ran = carrel("replay", str(number))
    assert ran.code == 1
    assert f"Different: not all results are those of job {number} of the lab" in ran.out
    assert "(2 outputs)." in ran.out
    assert "  output outputs/r: " in ran.out
    (again,) = re.findall(r"Submitted: job (\d+) replays", ran.err)
    assert carrel("replay", str(number), "--job", again, "--ignore", "outputs/r").code == 0
    ran = carrel("replay", str(number), "--job", str(number))
    assert (ran.code, f"Job {number} does not replay job {number} of the lab" in ran.err) == (2, True)


def test_another_processor_and_other_packages_are_said(
    carrel: CommandLine, client: Client, there: CommandLine, tmp_path: Path
) -> None:
    crate, other = tmp_path / "crate.zip", tmp_path / "other.zip"
    client.export_job(done(client, tmp_path / "a", "echo 1 > outputs/r\n"), crate)
    with zipfile.ZipFile(crate) as archive, zipfile.ZipFile(other, "w") as made:
        for member in archive.infolist():
            data = archive.read(member)
            if member.filename == "record.json":
                record = json.loads(data)
                record["attempts"][-1]["hardware"]["cpu"] = "Example 9000"
                data = json.dumps(record).encode()
            made.writestr(member, data)
        made.writestr("metrics.json", json.dumps({"metrics": {"loss": {"last": "0.5", "steps": [0], "values": ["0.5"]}}}))
    ran = there("replay", str(other))
    assert ran.code == 1, "that lab tracks nothing"
    assert "None of 1 output and 1 metric is known to differ." in ran.out
    ran = there("replay", str(other), "--ignore", "loss")
    assert (ran.code, ": 1 output of job" in ran.out) == (0, True)
    assert re.search(r"^  .*cpu: .+, not Example 9000$", ran.out, re.MULTILINE), ran.out


def test_an_output_that_is_damaged_is_not_exported(carrel: CommandLine, client: Client, lab_home: Path, tmp_path: Path) -> None:
    number = done(client, tmp_path / "a", "echo 12345 > outputs/r\n")
    (output,) = client.outputs(number)
    name = output.digest.removeprefix("sha256:")
    (blob,) = lab_home.rglob(name)
    blob.chmod(0o600)
    blob.write_text("12346\n")
    place = tmp_path / "made"
    place.mkdir()
    ran = carrel("export", str(number), "-o", str(place / "x.zip"))
    assert (ran.code != 0, '"outputs/r" did not arrive whole' in ran.err) == (True, True), ran.err
    assert list(place.iterdir()) == []
    assert carrel("export", str(number), "-o", str(place / "x.zip"), "--without-outputs").code == 0


def test_what_another_lab_keeps_has_to_be_said(carrel: CommandLine, client: Client, there: CommandLine, tmp_path: Path) -> None:
    first = done(client, tmp_path / "a", "echo 5 > outputs/five\n")
    place = tmp_path / "b"
    place.mkdir()
    (place / "MLproject").write_text(
        f"entry_points:\n  main:\n    command: cp in/five outputs/\ncarrel: {{inputs: {{in/five: 'job:{first}/outputs/five'}}}}\n"
    )
    job = client.submit_project(place)
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    crate = tmp_path / "crate.zip"
    client.export_job(job.id, crate, outputs=False)
    ran = there("replay", str(crate))
    assert ran.code == 2
    assert f"in/five (job:{first}/outputs/five)" in ran.err
    (tmp_path / "five").write_text("5\n")
    assert there("replay", str(crate), "--input", f"in/five=file:{tmp_path / 'five'}").code == 0
    (tmp_path / "five").write_text("6\n")
    assert there("replay", str(crate), "--input", f"in/five=file:{tmp_path / 'five'}").code == 1
    assert carrel("replay", str(job.id)).code == 0, "here it is there"


def test_an_export_is_whole_or_not_there(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    number = done(client, tmp_path / "a", "echo 1 > outputs/r\n", variables={"MODE": "fast"})
    target = tmp_path / "made" / "job.zip"
    assert "cannot be written" in carrel("export", str(number), "-o", str(target)).err
    target.parent.mkdir()
    assert carrel("export", str(number), "-o", str(target)).code == 0
    before = target.read_bytes()
    ran = carrel("export", str(number), "-o", str(target))
    assert (ran.code, "is there already" in ran.err) == (5, True)
    ran = carrel("export", str(number), "-o", str(target), "--force", "--json")
    assert (ran.code, ran.json["size"], target.read_bytes() == before) == (0, len(before), True)
    assert [path.name for path in target.parent.iterdir()] == ["job.zip"]
    with zipfile.ZipFile(target) as archive:
        assert json.loads(archive.read("record.json")) == client.record(number)
        assert archive.read("results/outputs/r") == b"1\n"
    carrel("outputs", str(number), "--remove")
    assert "1 of its outputs were given up" in carrel("export", str(number), "-o", str(target), "--force").out
    assert carrel("replay", str(target)).code == 0, "its digest is known"


def test_only_ones_own_jobs_that_have_ended_are_exported(
    carrel: CommandLine, client: Client, other: CommandLine, tmp_path: Path
) -> None:
    number = done(client, tmp_path / "a", "echo 1 > outputs/r\n", visible="account")
    ran = other("export", str(number), "-o", str(tmp_path / "x.zip"))
    assert (ran.code, "is not here for you" in ran.err or "There is no job" in ran.err) == (3, True), ran.err
    assert other("cite", str(number)).code == 3
    runs = client.submit_project(script(tmp_path / "b", "sleep 600\n")).id
    ran = carrel("export", str(runs), "-o", str(tmp_path / "x.zip"))
    assert (ran.code, f"Job {runs} is" in ran.err) == (2, True)
    client.cancel(runs)
    client.wait(runs, timeout=PATIENCE)
    ran = carrel("replay", str(runs))
    assert (ran.code, "the job is CANCELLED" in ran.err) == (2, True)
    assert not (tmp_path / "x.zip").exists()
    with pytest.raises(NotFound), (tmp_path / "y").open("wb") as file:
        client.download_code("sha256:" + "0" * 64, file)


def test_files_that_are_no_crates(carrel: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "no.zip").write_text("x")
    for words, code, fact in (
        (["replay", str(tmp_path / "no.zip")], 2, "is no ZIP archive"),
        (["replay", str(tmp_path / "none.zip")], 3, "There is no file"),
        (["replay", "99999"], 3, "There is no job"),
    ):
        ran = carrel(*words)
        assert (ran.code, fact in ran.err) == (code, True), ran.err


def test_a_citation_of_a_project_that_names_its_authors(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "MLproject").write_text("entry_points: {main: {command: 'true'}}\n")
    (code / "CITATION.cff").write_text("title: Digits\nauthors: [{given-names: Ada, family-names: King}]\n")
    job = client.submit_project(code)
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    assert carrel("cite", str(job.id)).out.startswith(f"Ada King. Digits. Job {job.id} of the lab ")
    assert "  author = {King, Ada}," in carrel("cite", str(job.id), "-f", "bibtex").out
    assert 'family-names: "King"' in carrel("cite", str(job.id), "--format", "cff").out
    assert carrel("cite", str(job.id), "--json").json["notes"] == []
