"""One table of settings; mistakes are named with their place and the nearest valid key."""

from pathlib import Path

import pytest

from carrel.domain.errors import Invalid
from carrel.domain.qos import JobKind
from carrel.server.settings import SETTINGS, read_settings


def test_the_command_line_outweighs_the_environment_and_that_the_file(tmp_path: Path) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text('port = 1\nhost = "a"\nmemory = "8G"\nwarning_time = "1m"\n')
    settings = read_settings(file, {"CARREL_HOST": "b", "CARREL_PORT": "2"}, {"port": 3, "host": None})
    assert (settings.port, settings.host, settings.memory, settings.warning_time) == (3, "b", 8 * 1024**3, 60)
    assert settings.tracking is True


def test_a_lab_without_a_file_has_sensible_classes_of_service(tmp_path: Path) -> None:
    settings = read_settings(tmp_path / "none.toml", {}, {})
    assert list(settings.qos) == ["normal", "short", "batch"]
    assert settings.default_qos == "normal"
    assert JobKind.SESSION not in settings.qos["batch"].kinds


def test_classes_of_service_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text(
        'default_qos = "lion"\n[qos.lion]\nmax_time = "24h"\nmax_jobs_per_user = 4\nkinds = ["task"]\npriority = -3\n'
    )
    lion = read_settings(file, {}, {}).qos["lion"]
    assert (lion.max_time, lion.max_jobs_per_user, lion.kinds, lion.priority) == (86400, 4, frozenset({JobKind.TASK}), -3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", 'no setting "prot". Did you mean "port"'),
        ('port = "x"', "port is 'x'. It must be a whole number"),
        ("port = -1", "port is -1. It must be 0 or more"),
        ("port = true", "port is True. It must be a whole number"),
        ('memory = "8"', 'memory: "8" is not a size. Say "8M" or "8G"'),
        ('tracking = "maybe"', "tracking is 'maybe'. It must be true or false"),
        ("[qos.a]\nmax_tim = '1h'", 'qos.a: there is no setting "max_tim". Did you mean "max_time"'),
        ("[qos.a]\nkinds = ['nap']", "qos.a.kinds is ['nap']. It must be a list of: task, session, worker"),
        ("default_qos = 'x'", 'default_qos is "x". Choose one of: normal, short, batch'),
        ("port = ", "is not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text(text)
    with pytest.raises(Invalid) as error:
        read_settings(file, {}, {})
    assert message in str(error.value)


def test_every_setting_says_what_it_is_for() -> None:
    assert all(setting.help.endswith(".") for setting in SETTINGS)
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
