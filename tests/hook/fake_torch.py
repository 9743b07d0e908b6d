"""A package that begins to use CUDA as PyTorch does, and does nothing else."""

from __future__ import annotations

from pathlib import Path

_FILES = {
    "torch/__init__.py": "from torch import _C, cuda\n",
    "torch/_C.py": "started = []\ndef _cuda_init():\n    started.append(1)\n",
    "torch/cuda.py": "from torch import _C\ndef init():\n    if not _C.started:\n        _C._cuda_init()\n"
    "def is_initialized():\n    return False\n",
}


def write_fake_torch(directory: Path, **more: str) -> None:
    """Make it importable from `directory`; `more`: further files below ``torch/``, by their path with dots for slashes."""
    files = {**_FILES, **{f"torch/{name.replace('.', '/')}.py": text for name, text in more.items()}}
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
