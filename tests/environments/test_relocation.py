"""A home that has another path has environments of its own again."""

import subprocess
import sys

from carrel.node.environments.named.records import Kind, Layout, NamedRecord
from carrel.node.environments.relocation import relocate


def test_a_copied_environment_is_its_own(tmp_path):
    old, new = tmp_path / "old" / "environments", tmp_path / "new" / "environments"
    place = Layout(old / "named").place("ada", "torch")
    place.prepare()
    record = NamedRecord(owner="ada", name="torch", kind=Kind.OWN, prefix="1", python="", source="", created=0.0)
    place.write(record)
    prefix = place.prefix(record)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    pip = prefix / "bin" / "pip"
    pip.write_text(f"#!{prefix}/bin/python\nimport sys\nprint(sys.prefix)\n")
    pip.chmod(0o755)
    (prefix / "bin" / "tool").symlink_to(pip)
    (prefix / "bin" / "compiled").write_bytes(b"\0" + bytes(prefix))
    (old / "envs" / "abc").mkdir(parents=True)
    (old / "locks").mkdir()
    new.parent.mkdir()
    subprocess.run(["cp", "-a", old, new], check=True)
    before = {path: path.read_bytes() for path in prefix.rglob("*") if path.is_file()}

    for _ in range(2):
        relocate(new, old)

    copy = Layout(new / "named").place("ada", "torch").prefix(record)
    for name in ("pip", "tool"):
        said = subprocess.run([copy / "bin" / name], capture_output=True, text=True, check=True).stdout
        assert said == f"{copy}\n"
    assert (copy / "bin" / "compiled").read_bytes() == b"\0" + bytes(prefix)
    assert str(old) not in (copy / "bin" / "activate").read_text()
    assert (copy / "bin" / "activate").stat().st_mode == (prefix / "bin" / "activate").stat().st_mode
    assert list(new.iterdir()) != []
    assert not (new / "envs").exists()
    assert (new / "locks").exists()
    assert (old / "envs" / "abc").exists()
    assert {path: path.read_bytes() for path in before} == before


def test_environments_that_lie_elsewhere_have_not_moved(tmp_path):
    shared = tmp_path / "shared"
    (shared / "envs" / "abc").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "environments").symlink_to(shared)
    relocate(tmp_path / "home" / "environments", tmp_path / "old" / "environments")
    assert (shared / "envs" / "abc").exists()


def test_what_an_owners_links_lead_to_is_not_rewritten(tmp_path):
    old, new = tmp_path / "old" / "environments", tmp_path / "new" / "environments"
    place = Layout(new / "named").place("ada", "torch")
    place.prepare()
    record = NamedRecord(owner="ada", name="torch", kind=Kind.OWN, prefix="1", python="", source="", created=0.0)
    place.write(record)
    prefix = place.prefix(record)
    (prefix / "lib/python3.11").mkdir(parents=True)
    for link in ("bin", "lib/python3.11/site-packages"):
        elsewhere = tmp_path / "of-the-lab" / link
        elsewhere.mkdir(parents=True)
        (elsewhere / "settings.pth").write_text(f"{old}/named")
        (prefix / link).symlink_to(elsewhere)
    (prefix / "pyvenv.cfg").write_text(f"{old}/named")
    (prefix / ".pyvenv.cfg.new").symlink_to(elsewhere / "settings.pth")
    relocate(new, old)
    assert (prefix / "pyvenv.cfg").read_text() == f"{new}/named"
    assert {path.read_text() for path in (tmp_path / "of-the-lab").rglob("*.pth")} == {f"{old}/named"}
