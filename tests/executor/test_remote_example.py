"""The example notebooks of remote cells, cell by cell, as somebody runs them outside of a session."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.kernel import TestKernel
from support.lab_process import LabProcess

EXAMPLES = Path(__file__).parents[2] / "examples" / "remote"
#: What each says, among other things.
SAID = {
    "train": ("step 400/400  loss 0.", "'trained on 400 points'", "accuracy 0.9", "[1.0, 1.0, 1.0, 1.0]"),
    "search": ("rate 0.5, 200 steps: loss 0.0", "the loss grows without end", "6 settings worked, 2 did not"),
    "flow": ("[('the', 5), ('cell', 3), ('gpu', 2)]", "0 of 5 from the cache", "5 of 5 from the cache"),
    "watch": ("########## 50/50", "1275 81", "ZeroDivisionError", "return sum(numbers) / len(numbers)", "lock"),
}


@pytest.mark.gate
def test_every_example_is_run() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.ipynb")} == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_an_example_works_on_the_lab(lab: LabProcess, tmp_path: Path, name: str) -> None:
    place = Path(shutil.copytree(EXAMPLES, tmp_path / "remote"))
    cells = json.loads((place / f"{name}.ipynb").read_text())["cells"]
    said = ""
    with TestKernel(variables={"CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}, directory=place) as kernel:
        for cell in cells:
            if cell["cell_type"] == "code":
                found = kernel.run("".join(cell["source"]), seconds=600)
                # As other programs that run notebooks read it (nbclient, nbconvert).
                expected = "error" if "raises-exception" in cell["metadata"].get("tags", ()) else "ok"
                assert found.status == expected, found
                said += found.text
        kernel.run("%load_ext carrel\n%remote close")
    for text in SAID[name]:
        assert text in said, said
