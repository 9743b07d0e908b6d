"""What the lab puts beside MLflow's own artifacts is there as a whole, or not at all."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from carrel.core.domain.errors import Unavailable
from carrel.lab.tracking.artifacts import ArtifactStore

pytestmark = pytest.mark.quick


class Failing(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise OSError(5, "Input/output error")
        return super().read(3 if size else size)


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_file_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path, "sqlite://")
    for content in (b"first", b""):
        store.put("ada", "1", "r" * 32, "carrel/log.txt", io.BytesIO(content))
        assert files(tmp_path) == {f"workspaces/ada/1/{'r' * 32}/artifacts/carrel/log.txt": content}


def test_a_source_that_fails_leaves_nothing_new(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path, "sqlite://")
    store.put("ada", "1", "r" * 32, "log.txt", io.BytesIO(b"before"))
    with pytest.raises(OSError, match="Input/output"):
        store.put("ada", "1", "r" * 32, "log.txt", Failing(b"after"))
    assert list(files(tmp_path).values()) == [b"before"]


def test_a_place_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "workspaces").write_text("no directory")
    with pytest.raises(Unavailable, match="cannot be written"):
        ArtifactStore(tmp_path, "sqlite://").put("ada", "1", "r" * 32, "log.txt", io.BytesIO(b""))
    full = Path("/dev/full")
    if full.exists():
        with pytest.raises(Unavailable, match="cannot be written"):
            ArtifactStore(full, "sqlite://").put("ada", "1", "r" * 32, "log.txt", io.BytesIO(b"x"))
