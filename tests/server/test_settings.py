"""One table of settings; mistakes are named with their place and the nearest valid key."""

from pathlib import Path

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.domain.qos import JobKind, PreemptMode
from carrel.engines.slurm.partition import SlurmPartition, slurm_of
from carrel.engines.slurm.site import site_options
from carrel.lab.server.settings import SETTINGS, read_settings

pytestmark = pytest.mark.quick


def test_the_command_line_outweighs_the_environment_and_that_the_file(tmp_path: Path) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text('port = 1\nhost = "a"\nmemory = "8G"\nwarning_time = "1m"\n')
    settings = read_settings(file, {"CARREL_HOST": "b", "CARREL_PORT": "2"}, {"port": 3, "host": None})
    assert (settings.port, settings.host, settings.memory, settings.warning_time) == (3, "b", 8 * 1024**3, 60)
    assert settings.tracking is True


def test_a_lab_without_a_file_has_sensible_classes_of_service(tmp_path: Path) -> None:
    settings = read_settings(tmp_path / "none.toml", {}, {})
    assert list(settings.rules.qos) == ["normal", "short", "interactive", "batch"]
    assert settings.rules.default_qos == "normal"
    assert JobKind.SESSION not in settings.rules.qos["batch"].kinds


def test_classes_of_service_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text(
        'default_qos = "lion"\n[qos.lion]\nmax_time = "24h"\nmax_jobs_per_user = 4\nkinds = ["task"]\npriority = -3\n'
    )
    lion = read_settings(file, {}, {}).rules.qos["lion"]
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
        ("[qos.a]\nkinds = ['nap']", "qos.a.kinds is ['nap']. It must be a list of: task, session"),
        ("default_qos = 'x'", 'default_qos is "x". Choose one of: normal, short, interactive, batch'),
        ("preset = 'mlrp'", 'There is no preset "mlrp". Choose one of: default, mlerp'),
        ("[qos.a]\npreempts = 'b'\n[qos.b]", "qos.a.preempts is 'b'. It must be a list of names"),
        ("[qos.a]\npreempts = ['bath']\n[qos.bat]", 'there is no class of service "bath". Did you mean "bat"'),
        ("[qos.a]\npreempts = ['a']", 'qos.a.preempts: "a" would preempt itself'),
        ("[qos.a]\npreempts = ['b']\n[qos.b]\npreempts = ['c']\n[qos.c]\npreempts = ['a']", '"a" would preempt itself'),
        ("[qos.a]\npreempt_mode = 'kill'", "qos.a.preempt_mode is 'kill'. It must be one of: none, requeue, suspend"),
        ("[qos.a]\npreempt_grace = -1", "qos.a.preempt_grace is -1"),
        ("[qos.a]\nshort_first = -1", "qos.a.short_first is -1. It must be a number, 0 or more."),
        ("[qos.a]\nshort_first = true", "qos.a.short_first is True"),
        ("[qos]", "there is no class of service. Write [qos.NAME]"),
        ("qos = 3", "qos must be tables"),
        ("[partitions.a]\nnods = ['*']", 'partitions.a: there is no setting "nods". Did you mean "nodes"'),
        ("[partitions.a]\nnodes = ['gpu[']", 'partitions.a.nodes: "gpu[" names no nodes'),
        ("[partitions.a]\nqos = ['lion']", 'partitions.a.qos: there is no class of service "lion". There are: normal'),
        ("[partitions.a]\nqos = []", "partitions.a.qos is []. It must be a list of names"),
        ("slurm_session_ports = '4000-3000'", '"4000-3000" is no range of ports. Write it like "40000-40999"'),
        ("[partitions.a]\nengine = 'slrm'", 'partitions.a.engine is \'slrm\'. It must be "local" or "slurm"'),
        ("[partitions.a]\nslurm_qos = 'x'", 'slurm_qos is for partitions of a Slurm cluster. Write engine = "slurm" too'),
        ("[partitions.a]\nengine = 'slurm'\nnodes = ['n1']", "partitions.a: Slurm knows which nodes its partition has"),
        ("[partitions.a]\nengine = 'slurm'\nslurm_options = 'x'", "slurm_options is 'x'. It must be a list such as"),
        ("[partitions.a]\nengine = 'slurm'\nslurm_options = ['--uid=0']", "partitions.a: Slurm: "),
        ("[partitions.a]\nengine = 'slurm'\nslurm_qos = 'a b'", "partitions.a: Slurm: qos is 'a b'"),
        ('residency = "of"', 'residency is "of". It must be one of: auto, off.'),
        ("[partitions.a]\nengine = 'slurm'\nslurm_partition = 3", "partitions.a.slurm_partition is 3. It must be a text"),
        ("[partition_names]\npascal = 'gpu'", "partition_names.pascal is 'gpu'. It must be a class of service"),
        ("[partitions.a]\n[partition_names]\npascal = 'b'", "partition_names.pascal is 'b'. It must be a partition: a"),
        ("[accounts.a]\nshars = 1", 'accounts.a: there is no setting "shars". Did you mean "shares"'),
        ("[accounts.a]\nshares = -1", "accounts.a.shares is -1. It must be 0 or more"),
        ("[accounts.a]\nparent = 'b'", 'accounts.a.parent is "b". Write [accounts.b] too'),
        ("[accounts.a]\nparent = 'b'\n[accounts.b]\nparent = 'a'", 'account "a" is a part of itself'),
        ("[accounts.a]\nusers = ['ada', 2]", "accounts.a.users is ['ada', 2]. Write names,"),
        ("[accounts.a]\nusers = []", "accounts.a.users is []. Write names,"),
        ("accounts = 1", "accounts is 1. It must be a table"),
        ("[priority]\nhalf_life = 0", 'priority.half_life is 0. It must be a duration such as "2h"'),
        ("[priority]\nshare_weight = true", "priority.share_weight is True"),
        ("[priority]\ncpu_charge = -1", "priority.cpu_charge is -1. It must be a number, 0 or more"),
        ("[priority]\npromises = 0", "priority.promises is 0. It must be 1 or more"),
        ("[priority]\npromises = 1.5", "priority.promises is 1.5. It must be a whole number"),
        ("[priority]\nbackfill_times = 'guessed'", 'backfill_times is \'guessed\'. It must be "walltime" or "expected"'),
        ("port = ", "is not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text(text)
    with pytest.raises(Invalid) as error:
        read_settings(file, {}, {})
    assert message in str(error.value)


def test_presets_are_changed_and_added_to_by_the_file(tmp_path: Path) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text('preset = "mlerp"\n[qos.lion]\nmax_jobs_per_account = 8\n[qos.big]\nmax_gpus_per_account = 2\n')
    rules = read_settings(file, {}, {}).rules
    assert list(rules.qos) == ["cheetah", "lion", "panther", "tabby", "big"]
    assert (rules.qos["lion"].max_time, rules.qos["lion"].max_jobs_per_account) == (86400, 8)
    assert (rules.default_for(JobKind.TASK), rules.default_for(JobKind.SESSION)) == ("cheetah", "panther")
    assert read_settings(file, {"CARREL_DEFAULT_QOS": "lion"}, {}).rules.default_qos == "lion"


def test_who_gives_way_comes_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text(
        '[qos.desk]\npreempts = ["rack"]\n[qos.rack]\nmax_gpus = 6\npreempt_mode = "requeue"\npreempt_exempt_time = "5m"\n'
        "preempt_grace = 0\n"
    )
    desk, rack = read_settings(file, {}, {}).rules.qos.values()
    assert (desk.preempts, desk.preempt_mode, desk.max_gpus) == ({"rack"}, PreemptMode.NONE, None)
    assert (rack.preempt_mode, rack.preempt_exempt_time, rack.preempt_grace, rack.max_gpus) == (PreemptMode.REQUEUE, 300, 0, 6)


def test_in_the_presets_short_jobs_and_sessions_preempt_batch_and_no_other_class(tmp_path: Path) -> None:
    default, mlerp = tmp_path / "none", tmp_path / "mlerp"
    mlerp.write_text('preset = "mlerp"')
    classes = read_settings(default, {}, {}).rules.qos
    assert {name: set(qos.preempts) for name, qos in classes.items() if qos.preempts} == {
        "interactive": {"batch"},
        "short": {"batch"},
    }
    modes = {name: qos.preempt_mode for name, qos in classes.items() if qos.preempt_mode is not PreemptMode.NONE}
    assert modes == {"batch": PreemptMode.SUSPEND}
    assert not any(qos.preempts for qos in read_settings(mlerp, {}, {}).rules.qos.values())


def test_classes_of_ones_own_choose_the_defaults_that_take_the_work(tmp_path: Path) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text('[qos.desk]\nkinds = ["session"]\n[qos.rack]\nkinds = ["task"]\n')
    rules = read_settings(file, {}, {}).rules
    assert (rules.default_qos, rules.session_qos) == ("rack", "desk")


def test_accounts_and_weights_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text(
        "[accounts.physics]\nshares = 3\nusers = { ada = 2, bob = 1 }\n"
        "[accounts.optics]\nparent = 'physics'\nusers = ['cem', 'dana']\n"
        "[priority]\nshare_weight = '1h'\nsize_weight = 0\nhalf_life = '14d'\ncpu_charge = 0.5\npromises = 10\n"
    )
    rules = read_settings(file, {}, {}).rules
    assert rules.accounts["physics"].users == {"ada": 2, "bob": 1}
    assert rules.accounts["optics"].users == {"cem": 1, "dana": 1}
    assert (rules.accounts["physics"].shares, rules.accounts["optics"].parent) == (3, "physics")
    assert (rules.share_weight, rules.half_life, rules.cpu_charge, rules.age_weight) == (3600, 14 * 86400, 0.5, 600)
    assert rules.promises == 10


def test_every_setting_says_what_it_is_for() -> None:
    assert all(setting.help.endswith(".") for setting in SETTINGS)
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)


def test_a_partition_may_be_one_of_a_slurm_cluster(tmp_path: Path) -> None:
    file = tmp_path / "carrel.toml"
    file.write_text(
        '[partitions.here]\n[partitions.gpu]\nengine = "slurm"\n[partitions.big]\nengine = "slurm"\nslurm_partition = "gpu"\n'
        'slurm_qos = "{qos}"\nslurm_account = "physics"\nslurm_options = ["--constraint=a100", "--exclusive", "--nice=5"]\n'
    )
    parts = read_settings(file, {}, {}).rules.partitions
    assert (slurm_of(parts["here"]), slurm_of(parts["gpu"])) == (None, SlurmPartition(partition="gpu"))
    big = slurm_of(parts["big"])
    assert big is not None
    asked = site_options(big, qos="lion", account="optics")
    assert (asked.partition, asked.qos, asked.account) == ("gpu", "lion", "physics")
    assert (asked.constraint, asked.exclusive, asked.passed) == ("a100", "exclusive", ("--nice=5",))
    assert parts["here"].has("anything")
    assert not parts["gpu"].has("anything")
