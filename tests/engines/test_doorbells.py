"""The sockets that runners ring."""

from __future__ import annotations

import select
import socket
from contextlib import closing
from pathlib import Path

import pytest

from carrel.engines.doorbells import NetworkDoorbells
from carrel.node.runner.report import Doorbell


def heard(doorbells: NetworkDoorbells) -> set[tuple[int, int]]:
    assert select.select([doorbells], [], [], 30)[0]
    return doorbells.rings()


def ring(tmp_path: Path, address: str) -> None:
    with closing(Doorbell(str(tmp_path / "nobody"), b"8 2", lambda: 0.0, network=address)) as bell:
        bell.ring()


@pytest.mark.gate
def test_a_runner_elsewhere_rings_and_strangers_are_not_heard(tmp_path: Path) -> None:
    doorbells = NetworkDoorbells(tmp_path / "bell", "127.0.0.1")
    try:
        place, _, word = doorbells.address.partition("/")
        host, port = place.split(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for words in (b"", b"7 1", b"0123456789abcdef 7 1", b"x" * 2000, word.encode() + b" a b"):
                stranger.sendto(words, (host, int(port)))
        ring(tmp_path, doorbells.address)
        rings = heard(doorbells)
        while (8, 2) not in rings:
            rings |= heard(doorbells)
        assert rings == {(8, 2)}
    finally:
        doorbells.close()


def test_the_next_engine_is_found_where_the_last_one_was(tmp_path: Path) -> None:
    first = NetworkDoorbells(tmp_path / "bell", "127.0.0.1")
    address = first.address
    first.close()
    second = NetworkDoorbells(tmp_path / "bell", "127.0.0.1")
    assert second.address == address
    # Where the port is taken, it is another one.
    third = NetworkDoorbells(tmp_path / "bell", "127.0.0.1")
    assert third.address != address
    assert (tmp_path / "bell").stat().st_mode & 0o077 == 0
    second.close()
    third.close()


def test_a_name_that_is_not_this_machines_is_listened_for_on_all_addresses(tmp_path: Path) -> None:
    doorbells = NetworkDoorbells(tmp_path / "bell", "login.invalid")
    try:
        assert doorbells.address.startswith("login.invalid:")
        here = doorbells.address.replace("login.invalid", "127.0.0.1")
        ring(tmp_path, here)
        assert heard(doorbells) == {(8, 2)}
    finally:
        doorbells.close()
