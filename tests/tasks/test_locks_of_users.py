"""Locks that users send: what uv writes is taken, and nothing that two programs could read in two ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.core.tasks.locks import with_lock

HASH = f"    --hash=sha256:{'a' * 64}"
NEEDS = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=("idna",))
BESIDE = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=("-e .", "./lib"), local=True)
IMAGE = EnvironmentRecipe(kind=EnvironmentKind.IMAGE, requirements=("python:3.12-slim",))


@pytest.mark.parametrize(
    "lock",
    [
        "",
        f"idna==3.10 \\\n{HASH}\n",
        f"idna==3.10 \\\n{HASH} \\\n{HASH}\nsix==1.17.0 ; python_full_version < '3.12' \\\n{HASH}\n",
        f"uvicorn[standard]==0.35.0+cpu.1 ; sys_platform == 'linux' and platform_machine != 'x86' \\\n{HASH}\n",
        "lib @ git+https://example.org/lib@0123456789abcdef0123456789abcdef01234567#subdirectory=py\n",
        "idna==3.10\n",
    ],
)
def test_what_uv_writes_is_taken(lock: str) -> None:
    assert with_lock(NEEDS, lock).lock == lock


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://evil.example/simple",
        "-i https://evil.example/simple",
        "-r /etc/passwd",
        "-e .",
        "./lib",
        "/etc",
        "lib @ file:///etc",
        "lib @ ssh://example.org/x",
        "# a comment",
        f"# a comment \\\n{HASH}",
        "idna>=3",
        "idna",
        "idna==3.10 # why",
        "idna==3.10 ; x\\",
        f"idna==3.10  \\\n{HASH}",
        f"idna==3.10 \\ \n{HASH}",
        "idna==3.10 \\\n--index-url https://evil.example",
        "idna==3.10 \\\n-e /etc",
        f"idna==3.10 \\\r\n{HASH}",
        "idna==3.10\x0b--index-url https://evil.example",
        "idna==3.10\u2028-e .",
        "idna==3.10 ; python_version > '3'\x85-e .",
        "  idna==3.10",
        HASH,
        " \\\nidna==3.10",
        "idna==3.10 \\",
        f"idna==3.10 \\\n    --hash=md5:{'a' * 32}",
        "${HOME}==1",
    ],
)
def test_what_could_be_read_otherwise_is_refused(line: str) -> None:
    for lock in (line, f"{line}\n", f"six==1.17.0 \\\n{HASH}\n{line}\n"):
        with pytest.raises(Invalid, match=r"^The lock, line \d+: "):
            with_lock(NEEDS, lock)


def test_what_lies_beside_the_code_is_named_as_the_code_names_it() -> None:
    assert with_lock(BESIDE, "-e .\n./lib\n").lock
    for lock in ("-e ..", "./other", "-e ./lib"):
        with pytest.raises(Invalid):
            with_lock(BESIDE, lock)


def test_an_image_is_pinned_and_no_other() -> None:
    pinned = f"python:3.12-slim@sha256:{'a' * 64}\n"
    assert with_lock(IMAGE, pinned).lock == pinned
    for lock in (f"evil@sha256:{'a' * 64}\n", "python:3.12-slim\n", "python:3.12-slim@sha256:a", f"{pinned}x", "idna==3.10\n"):
        with pytest.raises(Invalid, match="does not pin the image"):
            with_lock(IMAGE, lock)


@pytest.mark.parametrize("kind", [EnvironmentKind.UV_LOCK, EnvironmentKind.CONDA, EnvironmentKind.NONE])
def test_others_have_locks_of_their_own(kind: EnvironmentKind) -> None:
    recipe = EnvironmentRecipe(kind=kind)
    assert with_lock(recipe, "whatever") == recipe


PIECES = st.sampled_from(
    ["idna==3.10", " \\", "\n", HASH, "#", "-e .", " ; python_version > '3'", "\r", "\x0c", "--index-url x", " ", "\\"]
)


@given(st.lists(PIECES | st.text(max_size=2), max_size=8).map("".join))
def test_a_lock_that_is_taken_has_only_requirements_and_hashes(lock: str) -> None:
    try:
        with_lock(NEEDS, lock)
    except Invalid:
        return
    assert lock.splitlines() == lock.removesuffix("\n").split("\n") or not lock
    logical = lock.replace(" \\\n", " ").split("\n")
    assert all(not line or line.startswith(("idna==3.10", *"0123456789")) or "==" in line or " @ " in line for line in logical)
    assert not any(sign in lock for sign in ("\r", "\x0c"))
