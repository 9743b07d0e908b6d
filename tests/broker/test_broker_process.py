"""The broker's process as the server keeps it: started, adopted, replaced, started again, found unable."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kernels import eventually

from carrel.core.domain.errors import Invalid, Unavailable
from carrel.node.broker.client_authentication import node_token
from carrel.node.broker.config import BrokerConfig, Simulation, read_config
from carrel.node.broker.process import BrokerProcess, running
from carrel.node.devices.discover import discover
from carrel.node.leases.client import Broker
from carrel.node.leases.protocol import OBSERVER


@pytest.fixture
def home() -> Iterator[Path]:
    # Short: the path of a socket must be.
    path = Path(tempfile.mkdtemp(prefix="carrel-home-"))
    yield path
    found = running(path / "broker")
    if found is not None:
        os.kill(found.pid, signal.SIGKILL)
    shutil.rmtree(path)


@pytest.fixture
def config(home: Path) -> BrokerConfig:
    secret = home / "secret"
    secret.write_text(secrets.token_hex(32))
    return BrokerConfig(
        node="testnode",
        devices=discover(simulate=2, lab="test"),
        state=str(home / "broker"),
        spool=str(home / "spool"),
        secret_file=str(secret),
    )


def answers(process: BrokerProcess, config: BrokerConfig) -> bool:
    with Broker(process.socket, node_token(config.secret()), OBSERVER) as broker:
        return len(broker.status()["devices"]) == len(config.devices)


def ensure_broker(run_dir: Path, config: BrokerConfig) -> BrokerProcess:
    """Make sure that the broker of `config` runs and listens, and keep it running."""
    process = BrokerProcess(run_dir, config)
    try:
        process.start()
    except BaseException:
        process.close()
        raise
    return process


@pytest.mark.gate
def test_it_is_started_and_outlives_whoever_started_it(home: Path, config: BrokerConfig) -> None:
    first = ensure_broker(home / "run", config)
    assert answers(first, config)
    assert os.getsid(first.pid) == first.pid, "in a session of its own"
    first.close()
    second = ensure_broker(home / "run", config)
    assert second.pid == first.pid, "adopted"
    assert answers(second, config)
    second.stop()
    assert running(home / "broker") is None


def test_one_that_dies_is_started_again(home: Path, config: BrokerConfig) -> None:
    process = ensure_broker(home / "run", config)
    for _ in range(2):
        old = process.pid
        os.kill(old, signal.SIGKILL)
        eventually(lambda old=old: process.pid != old and running(home / "broker"))
        assert answers(process, config)
    process.stop()


@pytest.mark.parametrize("change", [{"version": "0.0.0"}, {"hold_time": 60.0}])
def test_one_of_another_kind_is_replaced(home: Path, config: BrokerConfig, change: dict[str, object]) -> None:
    old = ensure_broker(home / "run", replace(config, **change))
    old.close()
    new = ensure_broker(home / "run", config)
    assert new.pid != old.pid
    assert running(home / "broker").version == config.version  # type: ignore[union-attr]
    assert answers(new, config)
    new.stop()


def test_one_that_cannot_run_says_why(home: Path, config: BrokerConfig) -> None:
    Path(config.secret_file).unlink()
    with pytest.raises(Unavailable, match="secret cannot be read"):
        ensure_broker(home / "run", config)
    with pytest.raises(Unavailable, match="too long"):
        ensure_broker(home / ("x" * 100), config)


def test_no_secret_is_in_its_arguments_its_configuration_or_its_log(home: Path, config: BrokerConfig) -> None:
    process = ensure_broker(home / "run", config)
    secret = Path(config.secret_file).read_text().strip()
    assert answers(process, config)
    places = [Path(f"/proc/{process.pid}/{name}").read_text() for name in ("cmdline", "environ")]
    places += [path.read_text() for path in (home / "broker").iterdir() if path.is_file()]
    assert not any(secret in text or node_token(config.secret()) in text for text in places)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [*(home / "broker").iterdir(), home / "run" / "broker.sock"]}
    assert set(modes.values()) == {0o600}, modes
    process.stop()


def test_a_configuration_is_read_back_and_checked(tmp_path: Path, config: BrokerConfig) -> None:
    from carrel.node.broker.config import write_config

    path = tmp_path / "config.json"
    write_config(path, replace(config, simulation=Simulation(faults={"lost": 0.5})))
    assert read_config(path).simulation.faults == {"lost": 0.5}
    path.write_text('{"node": "x", "colour": "red"}')
    with pytest.raises(Invalid, match="colour"):
        read_config(path)
    with pytest.raises(Invalid, match="no fault"):
        Simulation(faults={"earthquake": 0.1})
    with pytest.raises(Invalid, match="0 to 1"):
        Simulation(faults={"lost": 2})
