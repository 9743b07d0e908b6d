"""Where the command line keeps tokens."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import carrel.client.stored_tokens as stored
from carrel.client.locate import locate
from carrel.core.domain.errors import Unauthenticated, Unavailable

URL = "https://lab.example.org:8642"


class Keyring:
    """As the package of that name."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], str] = {}

    def set_password(self, service: str, user: str, password: str) -> None:
        self.known[service, user] = password

    def get_password(self, service: str, user: str) -> str | None:
        return self.known.get((service, user))

    def delete_password(self, service: str, user: str) -> None:
        del self.known[service, user]


class Locked(Keyring):
    """Asks somebody who is not there."""

    def __init__(self, answered: threading.Event) -> None:
        super().__init__()
        self._answered = answered

    def set_password(self, service: str, user: str, password: str) -> None:
        self._answered.wait()


@pytest.fixture
def nobody() -> Iterator[threading.Event]:
    answered = threading.Event()
    yield answered
    answered.set()


@pytest.mark.gate
def test_tokens_are_kept_by_address_in_files_that_nobody_else_reads(tmp_path: Path) -> None:
    around = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    assert stored.keep(URL + "/", "one", around) == str(stored.token_file(URL, around))
    stored.keep("http://127.0.0.1:1", "two", around)
    for file in (tmp_path / "carrel/tokens").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert locate(url=URL, environment=around).token == "one"
    # The one that was signed in to last, where nothing else is said.
    assert locate(environment=around).url == "http://127.0.0.1:1"
    assert locate(url=URL, environment={**around, "CARREL_TOKEN": "mine"}).token == "mine"
    stored.forget("http://127.0.0.1:1", around)
    with pytest.raises(Unavailable):
        locate(environment=around)
    with pytest.raises(Unauthenticated, match="carrel login http://127.0.0.1:1"):
        locate(url="http://127.0.0.1:1", environment=around)


def test_an_address_of_ones_own_lab_needs_no_token_beside_that_of_its_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "address.json").write_text(json.dumps({"url": URL, "home": str(home), "inode": home.stat().st_ino}))
    (home / "token").write_text("homes\n")
    (home / "token").chmod(0o600)
    around = {"XDG_CONFIG_HOME": str(tmp_path), "CARREL_HOME": str(home), "CARREL_URL": URL}
    assert locate(environment=around).token == "homes"
    with pytest.raises(Unauthenticated, match="There is no token for https://other"):
        locate(environment={**around, "CARREL_URL": "https://other"})


def test_a_keyring_is_used_where_there_is_one(tmp_path: Path) -> None:
    around, keyring = {"XDG_CONFIG_HOME": str(tmp_path)}, Keyring()
    assert stored.keep(URL, "one", around, keyring=keyring) == "the keyring"
    assert not stored.token_file(URL, around).exists()
    assert stored.kept(URL, around, keyring=keyring) == ("one", None)
    stored.forget(URL, around, keyring=keyring)
    assert stored.kept(URL, around, keyring=keyring) is None
    stored.forget(URL, around, keyring=keyring)  # there is none any more, and that is well


def test_a_keyring_that_does_not_answer_holds_nobody_up(
    tmp_path: Path, nobody: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_PATIENCE", 0.01)
    around = {"XDG_CONFIG_HOME": str(tmp_path)}
    where = stored.keep(URL, "one", around, keyring=Locked(nobody))
    assert where == str(stored.token_file(URL, around))
    assert locate(url=URL, environment=around).token == "one"


def test_without_a_desktop_no_keyring_is_asked() -> None:
    assert stored.usable_keyring({}) is None
    assert stored.usable_keyring({"DISPLAY": ":0"}) is None
