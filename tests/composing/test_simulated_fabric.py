"""The driver without hardware passes the contract, and its file is read with the place of each mistake."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fabric_contract import FabricContract
from small_fabric import blocks, gpus, host, in_file

from carrel.core.control.composing import Fabric
from carrel.core.domain.errors import Invalid
from carrel.core.domain.fabric import BlockKind
from carrel.core.domain.units import GIB
from carrel.engines.fabric import SimulatedFabric, read_fabric


class TestSimulatedFabric(FabricContract):
    @pytest.fixture
    def fabric(self, tmp_path: Path) -> Fabric:
        return self._open(tmp_path)

    @pytest.fixture
    def reopened(self, tmp_path: Path) -> Callable[[], Fabric]:
        return lambda: self._open(tmp_path)

    @staticmethod
    def _open(path: Path) -> Fabric:
        return SimulatedFabric(in_file(path), [*blocks(BlockKind.CPU, 1), *gpus(2), *host("h1", 1)])


def _file(path: Path, text: str) -> Path:
    file = path / "fabric.toml"
    file.write_text(text)
    return file


def test_a_file_of_parts_is_read(tmp_path: Path) -> None:
    found = read_fabric(
        _file(
            tmp_path,
            'longest = "8h"\n[[blocks]]\nkind = "gpu"\ncount = 2\nname = "g{}"\nsize = "40G"\nzone = "east"\n'
            '[[blocks]]\nkind = "cpu"\nsize = 32\nname = "h1-cpu"\nmachine = "h1"\n'
            '[[blocks]]\nkind = "gpu"\nsize = "141G"\nslices = true\nmachine = "h1"\n',
        )
    )
    assert [block.name for block in found.blocks] == ["g0", "g1", "h1-cpu", "gpu"]
    assert found.longest == 8 * 3600
    assert found.blocks[0].size == 40 * GIB
    assert [one.name for one in found.blocks[3].profiles] == [
        "1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb",
    ]  # fmt: skip


def test_the_file_for_slices_of_real_gpus_is_the_one_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "composing.md").read_text()
    (text,) = (text for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if 'driver = "mig"' in text)
    found = read_fabric(_file(tmp_path, text))
    assert (found.driver, found.blocks, found.cpus, found.memory) == ("mig", (), 32, 256 * GIB)
    assert len(found.gpus) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[blocks]]\nkind = 'gpus'\n", 'block 1: kind is "gpus"'),
        ("[[blocks]]\nkind = 'gpu'\nsized = '1G'\n", 'there is no "sized". Did you mean "size"'),
        ("[[blocks]]\nkind = 'gpu'\nslices = true\nsize = '40G'\n", "built into a machine"),
        ("[[blocks]]\nkind = 'nic'\nslices = true\nmachine = 'a'\n", "cannot be cut"),
        ("[[blocks]]\nkind = 'gpu'\n[[blocks]]\nkind = 'gpu'\n", 'Two blocks are called "gpu"'),
        ("[[blocks]]\nkind = 'gpu'\nname = 'a/b'\n", "cannot be the name of a block"),
        ("[[blocks]]\nkind = 'gpu'\ntype = 'a 100'\n", '"a 100" cannot be a type'),
        ("[[blocks]]\nkind = 'gpu'\nsize = 40\n", "size is 40"),
        ("[[blocks]]\nkind = 'gpu'\ncount = 0\n", "count is 0"),
        ("driver = 'liqid'\n", 'driver is "liqid"'),
        ("blocks = 3\n", "not a list of tables"),
        ("[[faults]]\nblock = 'gpu'\nwhat = 'fire'\n", '"fire" is no fault'),
        ("longest = 3\n", "longest is 3"),
        ("driver = 'mig'\n[[blocks]]\nkind = 'gpu'\n", 'there is no "blocks"'),
        ("driver = 'mig'\ngpus = ['0']\n", "`nvidia-smi -L` has them"),
        ("driver = 'mig'\ncpus = 0\n", "cpus is 0"),
        ("x", "cannot be read"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_fabric(_file(tmp_path, text))
    assert said in str(caught.value)
