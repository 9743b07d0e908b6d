"""What travels, what stays, and that the digest speaks only of the content."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import Conflict, Invalid
from carrel.core.snapshots import Kind, SnapshotStore, pack
from support.examples import examples


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def paths(root: Path) -> set[str]:
    return {entry.path for entry in pack(root).files}


def test_the_digest_depends_on_content_only(tmp_path: Path) -> None:
    first = write(tmp_path / "first", {"b/train.py": "print(1)", "a.txt": "x"})
    second = write(tmp_path / "second", {"a.txt": "x", "b/train.py": "print(1)"})
    os.utime(second / "a.txt", (1, 1))
    (second / "a.txt").chmod(0o600)
    (second / "empty").mkdir()
    assert pack(first).digest == pack(second).digest
    with pack(first).open() as one, pack(second).open() as other:
        assert one.read() == other.read()


@pytest.mark.parametrize("change", ["content", "name", "executable", "link"])
def test_the_digest_changes_with(tmp_path: Path, change: str) -> None:
    root = write(tmp_path, {"a.txt": "x", "b.txt": "y"})
    (root / "link").symlink_to("a.txt")
    before = pack(root).digest
    match change:
        case "content":
            (root / "a.txt").write_text("z")
        case "name":
            (root / "a.txt").rename(root / "c.txt")
        case "executable":
            (root / "a.txt").chmod(0o755)
        case "link":
            (root / "link").unlink()
            (root / "link").symlink_to("b.txt")
    assert pack(root).digest != before


def test_an_ordinary_tar_program_reads_the_archive(tmp_path: Path) -> None:
    long = "d" * 120 + "/" + "e" * 120 + "/ü.py"
    root = write(tmp_path / "code", {"run.sh": "true", long: "1", "empty": ""})
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("d" * 120 + "/" + "e" * 120 + "/ü.py")
    with pack(root).open() as file:
        (tmp_path / "code.tar").write_bytes(file.read())
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "code.tar", "-C", tmp_path / "out"], check=True)
    assert (tmp_path / "out" / long).read_text() == "1"
    assert (tmp_path / "out" / "link").readlink() == Path(long)
    assert os.access(tmp_path / "out" / "run.sh", os.X_OK)
    assert pack(tmp_path / "out").digest == pack(root).digest
    with tarfile.open(tmp_path / "code.tar") as archive:
        assert all(member.mtime == 0 and member.uid == 0 for member in archive)


def test_what_is_never_code_stays_behind_at_any_depth(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "train.py": "",
            ".git/config": "",
            "pkg/__pycache__/x.pyc": "",
            "mlruns/0/meta.yaml": "",
            "mlflow.db": "",
            ".ipynb_checkpoints/n.ipynb": "",
            # Two neighbours: removing from a list while walking it would skip the second.
            "envs/one/pyvenv.cfg": "",
            "envs/one/bin/python": "",
            "envs/two/pyvenv.cfg": "",
            "envs/two/bin/python": "",
            "deep/er/my-env/pyvenv.cfg": "",
            "deep/er/my-env/lib/a.py": "",
            "deep/er/kept.py": "",
        },
    )
    assert paths(root) == {"train.py", "deep/er/kept.py"}


def test_nested_gitignore_and_those_above_are_honoured(tmp_path: Path) -> None:
    repository = write(
        tmp_path,
        {
            ".gitignore": "*.log\n/project/secret.txt\n",
            "project/.gitignore": "data/\n!keep.log\n",
            "project/train.py": "",
            "project/a.log": "",
            "project/keep.log": "",
            "project/secret.txt": "",
            "project/data/big.bin": "",
            "project/sub/.gitignore": "/only-here.txt\n!b.log\n",
            "project/sub/only-here.txt": "",
            "project/sub/b.log": "",
            "project/only-here.txt": "",
        },
    )
    assert "secret.txt" in paths(repository / "project")  # no repository: what lies above is somebody else's
    subprocess.run(["git", "init", "-q", repository], check=True)
    assert paths(repository / "project") == {".gitignore", "train.py", "keep.log", "sub/.gitignore", "sub/b.log", "only-here.txt"}


NAMES = st.sampled_from(["a", "b", "c.log", "d.py", "[a]", "a b", "-"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
PATTERNS = st.builds(
    lambda bang, slash, body, end: bang + slash + body + end,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.sampled_from(["a", "b", "*.log", "a/b", "a/*", "**/b", "a/**", "*", "?", "[ab]", "d.py", "b/c.log", "**/a/b"])
    | st.text(st.sampled_from("ab/.*?[]!^-\\\\c d#"), max_size=6),
    st.sampled_from(["", "", "/", " ", "\r"]),
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(PATHS, min_size=1, max_size=8), st.lists(PATTERNS, max_size=4), st.lists(PATTERNS, max_size=3))
@example({"a/b/c.log", "a/d.py", "b"}, ["a/*", "!a/b"], [])
def test_the_same_files_as_git_itself(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], top: list[str], inner: list[str]
) -> None:
    root = tmp_path_factory.mktemp("repository")
    for name in names:
        if not any(other != name and (other.startswith(name + "/") or name.startswith(other + "/")) for other in names):
            write(root, {name: "x"})
    write(root, {".gitignore": "\n".join(top) + "\n"})
    if (root / "a").is_dir():
        write(root, {"a/.gitignore": "\n".join(inner) + "\n"})
    subprocess.run(["git", "init", "-q", root], check=True)
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    expected = {name for name in listed.split("\0") if name}
    if expected:
        assert paths(root) == expected
    else:
        with pytest.raises(Invalid, match="no files to send"):
            pack(root)


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "../outside", "sub/../../outside", "sub/../a.txt", ".."],
)
def test_links_that_could_lead_outside_are_refused_by_name(tmp_path: Path, target: str) -> None:
    root = write(tmp_path / "code", {"a.txt": "", "sub/b.txt": ""})
    (root / "data").symlink_to(target)
    with pytest.raises(Invalid, match="'data'") as caught:
        pack(root)
    assert target in str(caught.value)


def test_links_inside_travel_as_links(tmp_path: Path) -> None:
    root = write(tmp_path / "code", {"a.txt": "", "sub/b.txt": ""})
    (root / "sub" / "up").symlink_to("../a.txt")
    (root / "dir").symlink_to("sub")
    kinds = {entry.path: entry.kind for entry in pack(root).files}
    assert kinds == {"a.txt": Kind.FILE, "sub/b.txt": Kind.FILE, "sub/up": Kind.LINK, "dir": Kind.LINK}


def test_pipes_stay_behind_and_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "sub/b.py": ""})
    os.mkfifo(tmp_path / "sub" / "pipe")
    packed = pack(tmp_path)
    assert {entry.path for entry in packed.files} == {"a.py", "sub/b.py"}
    assert packed.skipped == ("sub/pipe",)


def test_pointers_of_git_lfs_are_named(tmp_path: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{64 * 'a'}\nsize 12345\n"
    write(tmp_path, {"data.bin": pointer, "deep/model.pt": pointer, "about.md": f"A pointer:\n{pointer}"})
    assert pack(tmp_path).pointers == ("data.bin", "deep/model.pt")


def test_odd_names_are_refused_by_name(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py")).write_text("")
    with pytest.raises(Invalid, match="not UTF-8"):
        pack(tmp_path)


def test_an_unreadable_directory_or_file_is_an_error(tmp_path: Path) -> None:
    if os.geteuid() == 0:  # root reads everything: a name that goes away between listing and reading is the nearest thing
        root = write(tmp_path, {"a.py": "1"})
        packed = pack(root)
        (root / "a.py").unlink()
        with pytest.raises(Invalid, match=r"a\.py cannot be read"), packed.open():
            pass
        return
    root = write(tmp_path, {"a.py": "1"})
    (root / "a.py").chmod(0)
    with pytest.raises(Invalid, match=r"a\.py cannot be read"):
        pack(root)


def test_over_the_limit_names_the_three_largest(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"train.py": "x", "data/a": "x" * 3000, "data/b": "x" * 3000, "runs/c": "x" * 2000, "big.bin": "x" * 4000}
    )
    with pytest.raises(Invalid) as caught:
        pack(root, limit_bytes=10_000)
    assert [name in caught.value.message for name in ("data/", "big.bin", "runs/", "train.py")] == [True, True, True, False]
    assert caught.value.message.index("data/") < caught.value.message.index("big.bin") < caught.value.message.index("runs/")
    assert ".gitignore" in caught.value.remedy
    assert "inputs" in caught.value.remedy
    with pytest.raises(Invalid, match=r"5 files, more than 4\. Largest: data/ \(2 files\)"):
        pack(root, limit_files=4)
    write(root, {".gitignore": "data/\n"})
    assert pack(root, limit_bytes=10_000, limit_files=4).digest


def test_a_file_that_changes_while_being_sent_is_noticed(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.log": "one"})
    packed = pack(root)
    for text in ("two", "longer than before", "s"):
        (root / "a.log").write_text(text)
        with pytest.raises(Conflict, match=r"a\.log changed"), packed.open():
            pass


def test_not_a_directory(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="not a directory"):
        pack(tmp_path / "absent")


def test_packing_a_small_project_is_quick_and_starts_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    root = write(tmp_path / "code", {f"f{n}.py": "x" for n in range(10)})
    packed = pack(root)
    store = SnapshotStore(tmp_path / "store")
    with packed.open() as file:
        store.add(packed.digest, file)
    assert store.has(packed.digest)


@pytest.mark.parametrize("pattern", ["*a" * 60 + "b", "a/**/" * 50 + "b", "**/*a*a/" * 50 + "b"], ids=["stars", "trees", "both"])
def test_no_pattern_takes_long(tmp_path: Path, pattern: str) -> None:
    files = {".gitignore": pattern, "a" * 200: "1", "a/" * 60 + "a": "2", "aaaaaa/" * 60 + "c": "3"}
    write(tmp_path, files)
    assert {entry.path for entry in pack(tmp_path).files} == set(files)


def test_what_is_packed_apart_knows_no_gitignore_above(tmp_path: Path) -> None:
    write(tmp_path, {".git/HEAD": "", ".gitignore": "*", "code/a.py": "1"})
    assert [entry.path for entry in pack(tmp_path / "code", surrounding=False).files] == ["a.py"]
