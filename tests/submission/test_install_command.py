"""What messages say about installing Carrel: where this one came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carrel.core.submission.installed import install_command

CHECKOUT = {"dir_info": {}}
EDITABLE = {"dir_info": {"editable": True}}
GIT = {"url": "https://example.org/carrel.git", "vcs_info": {"vcs": "git", "commit_id": "4f2a"}}


@pytest.fixture
def came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says where an installation of Carrel came from, which is found before the one that runs the tests."""
    info = tmp_path / "site" / "carrel_lab-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrel-lab\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(info.parent))
    return info / "direct_url.json"


@pytest.mark.parametrize(
    ("said", "before"), [(CHECKOUT, "pip install "), (EDITABLE, "pip install -e "), ({"archive_info": {}}, "pip install ")]
)
@pytest.mark.parametrize("name", ["carrel", "of ada", "carrel_lab-9.9-py3-none-any.whl"])
def test_the_checkout_or_the_wheel_is_named(came_from: Path, tmp_path: Path, name: str, said: object, before: str) -> None:
    place = tmp_path / name
    place.touch()
    came_from.write_text(json.dumps({"url": place.as_uri(), **said}))
    assert install_command("server") == f"{before}'{place}[server]'"
    assert install_command().replace("'", "") == f"{before}{place}"


def test_an_address_is_named_with_its_commit(came_from: Path) -> None:
    came_from.write_text(json.dumps(GIT))
    assert install_command("lab") == "pip install 'carrel-lab[lab] @ git+https://example.org/carrel.git@4f2a'"


@pytest.mark.parametrize("said", [None, {"url": "file:///nowhere/carrel_lab-9.9-py3-none-any.whl", "archive_info": {}}])
def test_without_an_origin_that_is_there_a_checkout_is_the_example(came_from: Path, said: object) -> None:
    if said is not None:
        came_from.write_text(json.dumps(said))
    assert install_command("server") == "pip install '/path/to/carrel-checkout[server]'"
