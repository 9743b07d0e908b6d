"""A disk that can be filled without harm."""

import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path):
    """Yield a directory on a file system of 1 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "carrel-test", path], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user cannot mount a small file system: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)
