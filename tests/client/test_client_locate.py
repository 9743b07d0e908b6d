"""Which lab a client means, and what it sends there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carrel.client.code import code_of
from carrel.client.locate import default_home, locate, read_token
from carrel.core.domain.errors import Invalid, NotFound, Unauthenticated, Unavailable

pytestmark = pytest.mark.quick


def running(home: Path, *, mode: int = 0o600) -> Path:
    home.mkdir(parents=True)
    (home / "address.json").write_text(json.dumps({"url": "http://127.0.0.1:1/", "pid": 1}))
    (home / "token").write_text("of-the-home\n")
    (home / "token").chmod(mode)
    return home


def test_arguments_go_before_the_environment_and_that_before_the_home(tmp_path: Path) -> None:
    home = running(tmp_path / "lab")
    named = {"CARREL_URL": "https://lab.example/", "CARREL_TOKEN": "of-the-environment", "CARREL_HOME": str(home)}
    assert locate("http://other", "mine", environment=named).url == "http://other"
    found = locate(environment=named)
    assert (found.url, found.token) == ("https://lab.example", "of-the-environment")
    assert locate(home=home, environment=named).token == "of-the-home"
    assert locate(environment={"CARREL_HOME": str(home)}).url == "http://127.0.0.1:1"
    assert "of-the" not in repr(found)


def test_the_default_home_follows_xdg() -> None:
    assert default_home({"XDG_DATA_HOME": "/data"}) == Path("/data/carrel")
    assert default_home({}) == Path.home() / ".local/share/carrel"
    assert default_home({"CARREL_HOME": "~/lab"}) == Path.home() / "lab"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No lab is running"):
        locate(home=tmp_path)
    with pytest.raises(Unauthenticated, match="no token"):
        locate("http://somewhere", environment={})
    for wrong in ("somewhere", "http://", "http://[::1", "http://host:port", "ftp://host", "http://a b"):
        with pytest.raises(Invalid, match="not the address"):
            locate(wrong, "token")
    with pytest.raises(Invalid, match="password"):
        locate("http://me:secret@host", "token")
    for broken in ("zwei worte", "schlüssel", "a\nb"):
        with pytest.raises(Unauthenticated, match="not a token"):
            locate("http://host", broken)
    with pytest.raises(Unauthenticated, match="Others may read"):
        locate(home=running(tmp_path / "open", mode=0o640))
    with pytest.raises(Unauthenticated, match="cannot be read"):
        read_token(tmp_path / "absent")


def test_a_target_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no git address"):
        code_of("nothing/here", None, None, tmp_path)
    with pytest.raises(Invalid, match="not a task"):
        (tmp_path / "data.csv").touch()
        code_of(tmp_path / "data.csv", None, None, tmp_path)
    with pytest.raises(Invalid, match="version"):
        code_of(tmp_path, None, "main", tmp_path)
