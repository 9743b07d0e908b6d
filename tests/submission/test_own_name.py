"""A lab whose Unix user has no entry in passwd(5)."""

from __future__ import annotations

import os
import pwd

import pytest

from carrel.core.submission.own_name import own_name


def test_a_user_without_an_entry_has_a_name_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(KeyError):
        pwd.getpwuid(54321)
    assert own_name() == "uid-54321"
    monkeypatch.setenv("USER", "ada")
    assert own_name() == "ada"
