"""Until there is a release, no text says to install Carrel by name: an index has another program of that name, or none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("src", "residency", "packages", "docs", "examples", "README.md", "ARCHITECTURE.md", "SECURITY.md")
#: Carrel as a requirement by name. One with an address ("carrel-lab @ git+https://…") asks no index.
NAME = r"""(?<![\w./-])carrel(?:-lab)?(?:-residency|-jupyterhub)?(?![\w/.-])(?!(?:\[[\w,]*\])?\s*@)"""
#: An installer, its verb, and words of the same command (a `#`, a backtick or a `;` ends it) before the name.
BY_COMMAND = re.compile(rf"\b(?:uvx|(?:pip3?|pipx|uv(?:\s+(?:pip|tool))?)\s+(?:install|add|run|sync))\b[^`#;&|]{{0,120}}?{NAME}")
#: An extra belongs to a requirement wherever it is written; in code, what is in brackets after `carrel` is in quotes.
BY_EXTRA = re.compile(rf"{NAME}\[(?:server|lab|tracking|notebooks|hub|cmaes|keyring)\b")


def texts() -> Iterator[tuple[Path, str]]:
    for place in PLACES:
        for path in [ROOT / place] if (ROOT / place).is_file() else sorted((ROOT / place).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                try:
                    yield path, path.read_text()
                except UnicodeDecodeError:
                    continue


def by_name(text: str) -> list[str]:
    """The places of `text` that say to install Carrel by name."""
    return [found[0] for pattern in (BY_COMMAND, BY_EXTRA) for found in pattern.finditer(text)]


def test_nothing_tells_people_to_install_carrel_by_name() -> None:
    read = dict(texts())
    assert {ROOT / "README.md", ROOT / "docs/slurm.md", ROOT / "src/carrel/cli/up.py"} <= set(read)
    assert {str(path.relative_to(ROOT)): found for path, text in read.items() if (found := by_name(text))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "pip install carrel",
        'pip install "carrel[server]"',
        "/opt/carrel/bin/pip install 'carrel[lab,tracking]'",
        "pip install carrel-lab",
        "python -m pip install -U carrel==0.5.0",
        "pip install httpx \\\n    carrel",
        "%pip install -q carrel",
        "uv pip install --python .venv/bin/python 'carrel-lab[server]'",
        "uv add carrel-lab",
        "uv tool install carrel",
        "uv tool run carrel up",
        "uvx carrel up",
        "pipx install carrel",
        "pip install carrel-lab-residency",
        "pip install carrel-lab-jupyterhub",
        "Ask its administrator to install carrel[hub].",
        "'pip install '\n'carrel[cmaes]'",
        'dependencies = ["carrel-lab[lab]"]',
    ],
)
def test_that_would_be_seen(line: str) -> None:
    assert by_name(f"First\n{line}\nlast") != []


@pytest.mark.parametrize(
    "line",
    [
        "pip install '/path/to/carrel-checkout[server]'",
        "/opt/carrel/bin/pip install /path/to/carrel",
        "pip install 'dist/carrel_lab-0.1.0-py3-none-any.whl[server]'",
        "pip install 'carrel-lab[server] @ git+https://example.org/carrel@v1'",
        "pip install jupyterhub  # beside carrel",
        "`pip install x` works in sessions of `carrel notebook`",
        'carrel["resources"] = carrel[name]',
    ],
)
def test_that_would_not(line: str) -> None:
    assert by_name(line) == []
