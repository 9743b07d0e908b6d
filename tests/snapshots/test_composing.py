from __future__ import annotations

from pathlib import Path

import pytest

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.snapshots import SnapshotStore, pack
from carrel.core.snapshots.composing import compose


def add(store: SnapshotStore, directory: Path, files: dict[str, str]) -> str:
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    packed = pack(directory)
    with packed.open() as archive:
        store.add(packed.digest, archive)
    return packed.digest


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "snapshots")


def test_files_of_two_snapshots_make_a_third(store: SnapshotStore, tmp_path: Path) -> None:
    one = add(store, tmp_path / "one", {"train.py": "one\n", "old.py": "old\n", "dir/run.sh": "run\n", "same": "same\n"})
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "link").symlink_to("train.py")
    two = add(store, tmp_path / "two", {"train.py": "two\n", "new.py": "new\n", "dir/run.sh": "run\n", "same": "same\n"})
    how = {"taken": {"old.py", "new.py", "link"}, "texts": {"train.py": "both\n"}}
    made = compose(store, one, two, keep=False, **how)
    assert not store.has(made)
    assert compose(store, one, two, **how) == made
    store.extract(made, tmp_path / "made")
    found = {
        str(path.relative_to(tmp_path / "made")): path.read_text() for path in (tmp_path / "made").rglob("*") if path.is_file()
    }
    assert found == {"train.py": "both\n", "new.py": "new\n", "link": "both\n", "dir/run.sh": "run\n", "same": "same\n"}
    assert (tmp_path / "made" / "link").readlink() == Path("train.py")
    # What comes to the same files is the same snapshot.
    assert compose(store, one, two) == one
    assert compose(store, one, two, taken={"train.py", "old.py", "new.py", "link"}) == two


def test_files_that_do_not_go_together_are_refused(store: SnapshotStore, tmp_path: Path) -> None:
    one = add(store, tmp_path / "one", {"a": "a\n"})
    two = add(store, tmp_path / "two", {"a/b": "b\n"})
    with pytest.raises(Invalid, match="lies under"):
        compose(store, one, two, taken={"a/b"})
    with pytest.raises(NotFound):
        compose(store, one, "sha256:" + "0" * 64)
    assert store.sweep(float("inf")) == 0
