"""The table of what survives a suspension, and how it is found in a process that does not cooperate."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from carrel.node.suspension.survival import LIBRARIES, WORDS, staying_libraries, staying_modules


@pytest.mark.parametrize(
    ("mapped", "name"),
    [
        ("site-packages/jaxlib/libjax_common.so", "JAX"),
        ("site-packages/jaxlib/xla_extension.cpython-311-x86_64-linux-gnu.so", "JAX"),
        ("site-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so", "JAX"),
        ("renamed/libjax_common.so", "JAX"),
        ("site-packages/tensorflow/libtensorflow_framework.so.2", "TensorFlow"),
        ("site-packages/tensorflow/libtensorflow_cc.so.2", "TensorFlow"),
        ("site-packages/_XLAC.cpython-311-x86_64-linux-gnu.so", "PyTorch/XLA"),
        ("lib/libnvoptix.so.580.65.06", "OptiX"),
        ("lib/libnvidia-eglcore.so.580.65.06", "OpenGL or Vulkan on the GPU"),
        ("lib/libnvcuvid.so.1", "NVENC or NVDEC"),
        ("site-packages/ucx/libuct_cuda.so.0", "UCX"),
    ],
)
def test_a_mapped_library_is_found_in_a_real_process(tmp_path: Path, mapped: str, name: str) -> None:
    path = tmp_path / mapped
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * mmap.PAGESIZE)
    assert name not in staying_libraries(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        path.unlink()  # what is deleted is mapped all the same
        assert name in staying_libraries(os.getpid())
    assert name not in staying_libraries(os.getpid())


@pytest.mark.parametrize(
    "line",
    [
        "7f00-7f01 r-xp 00000000 08:01 7 /venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so",
        "7f00-7f01 r-xp 00000000 08:01 7 /venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "7f00-7f01 r-xp 00000000 08:01 7 /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06",
        "7f00-7f01 rw-s 00000000 00:1a 9 /dev/shm/torch_4711_1_0 (deleted)",
        "7f00-7f01 r-xp 00000000 08:01 7 /home/ada/project/tensorflow_notes/index.so",
    ],
)
def test_what_survives_is_left_alone(tmp_path: Path, line: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(line + "\n")
    assert staying_libraries(7, proc=tmp_path) == ()


def test_communicators_between_processes_are_found_by_their_shared_memory(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text("7f00-7f01 rw-s 00000000 00:1a 9      /dev/shm/nccl-aBcDeF (deleted)\n")
    assert staying_libraries(7, proc=tmp_path) == ("NCCL between processes",)


def test_a_process_that_is_gone_has_none(tmp_path: Path) -> None:
    assert staying_libraries(7, proc=tmp_path) == ()


def test_every_row_has_evidence_and_those_that_stay_can_be_found() -> None:
    for library in LIBRARIES:
        assert library.evidence.endswith(".")
        assert library.survives or library.files
    assert staying_modules()["jaxlib"] == "JAX"
    assert "torch" not in staying_modules()
    assert set(staying_modules().values()) <= WORDS
