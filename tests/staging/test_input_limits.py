"""An input that is larger than the lab takes ends the task's preparation, with the limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.core.domain.task import InputSpec
from carrel.node.staging.download import Most
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.fetching import stage_inputs

pytestmark = pytest.mark.quick


def test_an_input_has_a_largest_size_and_a_largest_number_of_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(5):
        (source / f"{number}.txt").write_bytes(b"x" * 1000)

    def stage(most: Most) -> None:
        target = tmp_path / f"{most.size}.{most.files}"
        target.mkdir()
        stage_inputs((InputSpec(path="in", uri=str(source)),), target, lambda _message: None, most=most)

    for fine in (Most(), Most(size=5000), Most(files=5), Most(size=5000, files=5)):
        stage(fine)
    with pytest.raises(InputFailed, match=r"has more than .*input_limit"):
        stage(Most(size=4999))
    with pytest.raises(InputFailed, match="has more than 4 files"):
        stage(Most(files=4))
