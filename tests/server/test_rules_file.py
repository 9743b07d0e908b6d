"""carrel.toml, whose rules the lab changes in place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.core.control.rules import RuleBook
from carrel.core.domain.errors import Conflict, Denied, Invalid
from carrel.lab.server.rules import read_lab_rules
from carrel.lab.server.rules_file import RulesFile
from carrel.lab.server.settings import settings_of

pytestmark = pytest.mark.quick

TEXT = """\
# The lab of physics.
host = "127.0.0.1"  # nobody from outside
preset = "mlerp"

[qos.lion]
max_time = "48h"  # long enough
max_gpus = 8

[accounts]
optics = { shares = 2 }
"""


def rules_file(tmp_path: Path, text: str = TEXT) -> RulesFile:
    file = tmp_path / "carrel.toml"
    file.write_text(text)
    return RulesFile(file, lambda tables, where: settings_of(tables, where, {}, {}).rules)


def change(file: RulesFile, **changes: object) -> None:
    file.write(file.changed({path.replace("__", "."): value for path, value in changes.items()}))


def test_a_change_keeps_comments_order_and_everything_else(tmp_path: Path) -> None:
    file = rules_file(tmp_path)
    change(file, qos__lion__max_time="36h", qos__lion__max_gpus=None, accounts__optics__shares=3, priority__half_life="7d")
    text = TEXT.replace('"48h"', '"36h"').replace("max_gpus = 8\n", "").replace("shares = 2", "shares = 3")
    assert (tmp_path / "carrel.toml").read_text() == f'{text}\n[priority]\nhalf_life = "7d"\n'


def test_one_class_of_the_preset_is_changed_and_the_others_stay(tmp_path: Path) -> None:
    file = rules_file(tmp_path, "")
    change(file, qos__batch__priority=3)
    rules = read_lab_rules(tmp_path / "carrel.toml")
    assert (list(rules.qos), rules.qos["batch"].priority) == (list(read_lab_rules(None).qos), 3)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("qos.lion.max_time", "soon", "qos.lion.max_time"),
        ("qos.lion.max_tim", "2h", 'Did you mean "max_time"'),
        ("qos.lio.max_time", "2h", 'Did you mean "lion"'),
        ("qos.lion.preempts", ["lion"], "would preempt itself"),
        ("qos.cheetah.priority", None, "its value from the preset"),
        ("host", "0.0.0.0", "is no rule"),
        ("accounts.optics.parent", "optics", "part of itself"),
        ("priority.promises", {"a": 1}, "priority.promises"),
        ("priority.promises", [object()], "With that change"),
    ],
)
def test_what_the_lab_would_refuse_is_never_written(tmp_path: Path, path: str, value: object, said: str) -> None:
    file = rules_file(tmp_path)
    with pytest.raises(Invalid) as refused:
        file.write(file.changed({path: value}))
    assert said in str(refused.value)
    assert (tmp_path / "carrel.toml").read_text() == TEXT


def test_what_an_editor_has_saved_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    file = rules_file(tmp_path)
    changed = file.changed({"qos.lion.max_gpus": 9})
    (tmp_path / "carrel.toml").write_text(f"# mine\n{TEXT}")
    with pytest.raises(Conflict):
        file.write(changed)
    assert (tmp_path / "carrel.toml").read_text() == f"# mine\n{TEXT}"


def test_a_file_that_is_looked_after_elsewhere_is_left_alone(tmp_path: Path) -> None:
    file, here = rules_file(tmp_path), tmp_path / "carrel.toml"
    here.chmod(0o444)
    with pytest.raises(Denied, match="not the lab's to write"):
        change(file, qos__lion__max_gpus=9)
    here.chmod(0o640)
    change(file, qos__lion__max_gpus=9)
    assert here.stat().st_mode & 0o777 == 0o640
    here.rename(tmp_path / "elsewhere.toml")
    here.symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(Denied, match="is a link"):
        change(file, qos__lion__max_gpus=10)


def test_what_a_form_shows_is_what_it_reads(tmp_path: Path) -> None:
    file = rules_file(tmp_path)
    for section in file.sections(read_lab_rules(tmp_path / "carrel.toml")):
        texts = {field.path: field.text for field in section.fields}
        if section.path != "accounts.":
            assert file.changes(section.path, texts) == {}, section.path
    texts = {"accounts.bio.users": "ada=2, bob", "accounts.bio.shares": "4"}
    change(file, **{path.replace(".", "__"): value for path, value in file.changes("accounts.bio", texts).items()})
    bio = read_lab_rules(tmp_path / "carrel.toml").accounts["bio"]
    assert (bio.shares, bio.users) == (4, {"ada": 2, "bob": 1})
    assert file.changes("priority", {}) == dict.fromkeys(
        f"priority.{key}"
        for key in ("age_weight", "share_weight", "size_weight", "half_life", "cpu_charge", "promises", "backfill_times")
    )


def test_a_change_that_cannot_be_written_is_not_in_force(tmp_path: Path) -> None:
    file = rules_file(tmp_path)
    before = read_lab_rules(tmp_path / "carrel.toml")
    book = RuleBook(before, written=file)
    changed = file.changed({"qos.lion.max_gpus": 9})
    (tmp_path / "carrel.toml").chmod(0o444)
    with pytest.raises(Denied):
        book.change(changed)
    assert book.current == before


#: Ends at a call of the kernel that it is told, as `kill -9` would end it there.
KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_rules_file import rules_file_at
name = sys.argv[2]
def die(*arguments, **more):
    os.kill(os.getpid(), 9)
if name == "replace":
    Path.replace = die
elif name != "end":
    setattr(os, name, die)
file = rules_file_at(Path(sys.argv[1]))
file.write(file.changed({"qos.lion.max_gpus": 9}))
os.kill(os.getpid(), 9)
"""


def rules_file_at(path: Path) -> RulesFile:
    return RulesFile(path, lambda tables, where: settings_of(tables, where, {}, {}).rules)


@pytest.mark.parametrize("moment", ["fchmod", "fsync", "replace", "end"])
def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path: Path, moment: str) -> None:
    file = rules_file(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "carrel.toml"), moment, str(Path(__file__).parent)]
    assert subprocess.run(command, check=False, env=os.environ).returncode == -9
    left = read_lab_rules(tmp_path / "carrel.toml").qos["lion"].max_gpus
    assert left == (9 if moment == "end" else 8)
    change(file, qos__lion__max_gpus=10)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["carrel.toml"]
