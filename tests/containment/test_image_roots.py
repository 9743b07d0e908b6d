"""An image in the place of the machine's files: what is there, what is not, and images that try something."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.node.containment.walls import Bind, View, Walls
from carrel.node.runner.image import DRIVER, driver_files, with_driver
from support.escapes import limits_processes, read_table, victims
from support.images import programs, write_layer
from support.inside import run_inside
from support.namespaces import why_no_namespaces
from support.tricks import HOSTILE

SECRET = "correct-horse-battery-staple"
#: What a program of the lab's does before it becomes one of the image's.
ENTER = "import os, sys; from carrel.node.containment.view import enter; enter(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
ESCAPES = read_table(Path(__file__).with_name("escapes.txt"))


class Rig:
    """An image, unpacked, a directory of a job's, and a secret of the machine's."""

    def __init__(self, root: Path) -> None:
        if why_no_namespaces():
            pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
        self.image, self.work, self.private, self.secret = (root / name for name in ("image", "work", "private", "secret"))
        for directory in (self.image, self.work, self.private):
            directory.mkdir()
        self.secret.write_text(SECRET)

    def has(self, files: Mapping[str, bytes | Path | str | None]) -> None:
        layer = write_layer({**programs("sh", "ls", "cat", "mount", "touch", "chroot"), **files})
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            # As `filter="tar"`, which Python has since 3.11.4 only.
            archive.extraction_filter = lambda member, _path: member
            archive.extractall(self.image)

    def run(self, command: str, *binds: Bind) -> tuple[int, str]:
        walls = Walls(root=str(self.image), binds=binds, temporary=str(self.private))
        code, said = run_inside(walls, ["/bin/sh", "-c", command])
        return code, said.decode(errors="replace")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.gate
def test_what_a_job_was_given_is_at_its_own_paths_beside_what_the_image_has(rig: Rig) -> None:
    rig.has(
        {"etc/motd": b"image\n", "etc/hosts": b"theirs\n", "home/other/file": b"other\n", "usr/share/doc/a": b"", "data": None}
    )
    names = rig.work / "names"
    names.write_text("ours\n")
    (rig.work / "in").write_text("input\n")
    places = ("/home/alice/.lab/spool/1/work", "/data/deep/er", "/nowhere/else")
    binds = [Bind(str(rig.work), place, writable=True) for place in places]
    asked = "cat /etc/motd /etc/hosts /home/other/file; " + " ".join(f"cat {place}/in; touch {place}/made;" for place in places)
    code, said = rig.run(asked, *binds, Bind(str(names), "/etc/hosts"), Bind(str(names), "/etc/resolv.conf"))
    assert (code, said.split()) == (0, ["image", "ours", "other", "input", "input", "input"])
    assert (rig.work / "made").exists()
    assert not (rig.image / "home/alice").exists()
    assert not (rig.image / "nowhere").exists()


@pytest.mark.parametrize("beside", [False, True], ids=["in the machine's place", "beside it"])
def test_nothing_gets_out_of_an_image(rig: Rig, beside: bool) -> None:
    """The attack suite; the machine's Python is lent to the image for it."""
    rig.has({"etc/motd": b""})
    lent = {os.path.realpath(path): "" for path in (sys.prefix, sys.base_prefix, "/usr")}
    lent |= {os.path.realpath(path): path for path in ("/lib", "/lib64") if Path(path).is_symlink()}
    binds = [Bind(path, place) for path, place in lent.items()]
    files = {"token and secret": rig.secret, "another's spool": rig.work / "journal", "another's log": rig.work / "log"}
    for path in list(files.values())[1:]:
        path.write_text(SECRET)
    name = f"\0carrel-image-{os.getpid()}"
    with victims() as others, socket.socket(socket.AF_UNIX) as listener, socket.create_server(("127.0.0.1", 0)) as port:
        listener.bind(name)
        listener.listen()
        about = {
            **others.about(),
            "files": {kind: [str(path)] for kind, path in files.items()},
            "directories": [str(rig.work)],
            "sockets": [name],
            "broker": name,
            "addresses": [["127.0.0.1", port.getsockname()[1]], ["::1", port.getsockname()[1]]],
            "closed": True,
            "devices": ["/dev/nvidia0", "/dev/kmsg", "/dev/mem", "/dev/vda"],
            "deputies": [["sudo", "-n", "-u", "nobody", "true"]],
            "memory": 64 * 1024**2,
            "process_limit": 600 if limits_processes() else 0,
        }
        walls = Walls(
            root=str(rig.image),
            binds=binds,
            temporary=str(rig.private),
            doors=(),
            processes=600,
            shared_memory=64 * 1024**2,
        )
        words = [os.path.realpath(sys.executable), "-I", "-c", HOSTILE, json.dumps(about)]
        if beside:
            place = "/mnt"  # below /tmp there would be a way to it, which the job may write
            walls = replace(walls, root="", binds=(), view=View(root=str(rig.image), place=place, binds=binds))
            words = [sys.executable, "-c", ENTER, place, *words]
        code, said = run_inside(walls, words)
    assert code == 0, said
    ESCAPES.judge("image", said.decode())


@pytest.mark.parametrize(
    "attempt",
    [
        "cat {secret}",
        "cat /proc/1/root{secret}",
        "cat /proc/self/root/../../..{secret}",
        "cat /tmp/image{secret} /tmp/root{secret}",
        "chroot /proc/1/root /bin/cat {secret}",
        "mount -t tmpfs none /data",
        "mount --bind /bin /data",
        "touch /made",
        "touch /bin/made",
        "touch /etc/made",
        "touch /data/made",
        "touch /dev/made",
    ],
)
def test_nothing_of_the_machine_is_reached_and_nothing_of_the_image_changed(rig: Rig, attempt: str) -> None:
    rig.has({"data/file": b"", "etc/motd": b""})
    before = sorted(path.relative_to(rig.image) for path in rig.image.rglob("*"))
    code, said = rig.run(attempt.format(secret=rig.secret), Bind(str(rig.work), "/data/work", writable=True))
    assert code != 0
    assert SECRET not in said
    assert sorted(path.relative_to(rig.image) for path in rig.image.rglob("*")) == before


def test_links_of_an_image_lead_into_the_image_alone(rig: Rig) -> None:
    rig.has(
        {"root": str(rig.secret.parent), "tmp": "/etc", "proc": "/etc", "dev": b"a file", "etc/motd": b"image\n", "var": "etc"}
    )
    code, said = rig.run(f"cat /root/{rig.secret.name}; cat /var/motd; ls /proc/self/status; ls -l /dev/null; touch /tmp/x")
    assert SECRET not in said
    assert "image" in said
    assert "/proc/self/status" in said
    assert code == 0
    assert (rig.private / "x").exists()


def test_a_link_in_the_way_of_a_jobs_directory_is_no_way_out(rig: Rig, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    rig.has({"home": str(outside)})
    code, said = rig.run("ls /home/alice", Bind(str(rig.work), "/home/alice/work", writable=True))
    assert list(outside.iterdir()) == []
    assert (code, said) == (0, "work\n")


def test_the_drivers_libraries_are_found_by_what_ldconfig_lists(tmp_path: Path) -> None:
    listing = (
        "3 libs found in cache `/etc/ld.so.cache'\n"
        f"\tlibcuda.so.1 (libc6,x86-64) => {tmp_path}/libcuda.so.1\n"
        f"\tlibcuda.so.1 (libc6) => {tmp_path}/32/libcuda.so.1\n"
        f"\tlibnvidia-ml.so.1 (libc6,x86-64) => {tmp_path}/libnvidia-ml.so.1\n"
        f"\tlibc.so.6 (libc6,x86-64) => {tmp_path}/libc.so.6\n"
    )
    (tmp_path / "libcuda.so.580.1").touch()
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    (tmp_path / "libnvidia-ml.so.1").touch()
    found = {bind.place: bind.source for bind in driver_files(listing) if "/lib/" in bind.place}
    assert found == {
        f"{DRIVER}/lib/libcuda.so.1": f"{tmp_path}/libcuda.so.580.1",
        f"{DRIVER}/lib/libnvidia-ml.so.1": f"{tmp_path}/libnvidia-ml.so.1",
    }
    variables = with_driver({"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib"})
    assert variables == {"PATH": f"/usr/bin:{DRIVER}/bin", "LD_LIBRARY_PATH": f"/opt/lib:{DRIVER}/lib"}


def test_an_image_beside_the_machine_is_entered_and_the_machine_is_not_changed(rig: Rig) -> None:
    rig.has({"etc/motd": b"image\n", "home/other/file": b"other\n", "var": "/etc", "data": None})
    (rig.work / "in").write_text("input\n")
    place = rig.private.parent / "place"
    place.mkdir()
    places = ("/home/alice/.lab/work", "/var/lib/job", "/nowhere/else")
    binds = tuple(Bind(str(rig.work), where, writable=True) for where in places)
    view = View(root=str(rig.image), place=str(place), binds=binds)
    walls = Walls(view=view, binds=[Bind(str(place))], temporary=str(rig.private))
    asked = "cat /etc/motd /home/other/file; " + " ".join(f"cat {where}/in; touch {where}/made;" for where in places)
    asked += f" touch /tmp/mine; touch /etc/no; ls /proc/self/fd >/dev/null && cat {rig.secret}; chroot / /bin/sh -c 'echo out'"
    code, said = run_inside(walls, [sys.executable, "-c", ENTER, str(place), "/bin/sh", "-c", asked])
    assert code != 0
    told = [line for line in said.decode().splitlines() if ":" not in line]
    assert told == ["image", "other", "input", "input", "input"], said
    assert (rig.work / "made").exists()
    assert (rig.private / "mine").exists()
    assert not list(place.iterdir())
    assert not (rig.image / "etc/no").exists()
