"""A path is trusted exactly when another Unix user could not put something else in its place: the kernel is asked who can."""

import itertools
import json
import os
import pwd
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from carrel.core.domain.errors import Denied, Unavailable
from carrel.core.spool.strict import open_trusted, trusted_directory
from support.unix_users import common_ground

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
#: Users that every Debian has, each with a group of their own.
VICTIM, MALLORY = pwd.getpwnam("games"), pwd.getpwnam("backup")
MODES = (0o700, 0o755, 0o775, 0o777, 0o1775, 0o1777)


def as_user(account, work):
    """Return what `work` returns when a process of that user does it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([account.pw_gid])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            with open(write, "w") as file:
                json.dump(work(), file)
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as file:
        answer = json.load(file)
    os.waitpid(pid, 0)
    return answer


@dataclass(frozen=True)
class Component:
    owner: int
    group: int
    mode: int
    link: bool = False

    def make(self, path: Path, target: Path) -> None:
        if self.link:
            path.symlink_to(target)
            os.chown(path, self.owner, self.group, follow_symlinks=False)
            return
        path.mkdir()
        os.chown(path, self.owner, self.group)
        path.chmod(self.mode)


def directories():
    owners, groups = (0, VICTIM.pw_uid, MALLORY.pw_uid), (VICTIM.pw_gid, MALLORY.pw_gid)
    return [Component(owner, group, mode) for owner in owners for group in groups for mode in MODES]


def verdict(path: str) -> str:
    try:
        trusted_directory(Path(path))
    except Denied as error:
        return error.message
    except Unavailable:
        return "unreachable"
    return ""


def gets_in(path: Path) -> bool:
    """Try, as Mallory, to have something of hers where `path` is, or in what it is."""
    tries = [
        lambda: path.rename(path.with_name("moved")),
        lambda: path.parent.chmod(0o777),
        lambda: path.chmod(0o777),
        lambda: (path / "hers").mkdir(),
    ]
    for attempt in tries:
        with suppress(OSError):
            attempt()
            return True
    return False


def test_what_is_trusted_nobody_else_can_change_and_what_is_refused_somebody_could():
    links = [Component(owner, 0, 0, link=True) for owner in (0, VICTIM.pw_uid, MALLORY.pw_uid)]
    cases = list(itertools.product(directories(), [*directories(), *links]))
    with common_ground() as ground:
        ground.chmod(0o755)
        good = ground / "good"
        Component(VICTIM.pw_uid, VICTIM.pw_gid, 0o700).make(good, good)
        for number, (parent, child) in enumerate(cases):
            parent.make(ground / str(number), good)
            child.make(ground / str(number) / "child", good)
        paths = [ground / str(number) / "child" for number in range(len(cases))]
        judged = as_user(VICTIM, lambda: [verdict(str(path)) for path in paths])
        broken = as_user(MALLORY, lambda: [gets_in(path) for path in paths])
    trusted = 0
    for case, judgment, got_in in zip(cases, judged, broken, strict=True):
        if judgment == "unreachable":
            continue
        assert not (got_in and not judgment), f"{case} was trusted, and somebody else got in"
        # Whoever made a link cannot change it in a directory of others, but they chose where it leads; what a closed directory
        # hides today is refused as well.
        excused = case[0].mode == 0o700 or (case[1].link and case[1].owner == MALLORY.pw_uid)
        assert got_in or not judgment or excused, f"{case}: {judgment}"
        trusted += not judgment
    assert len(cases) == 36 * 39
    assert trusted > 100


def test_a_link_leads_where_each_step_is_trusted():
    with common_ground() as ground:
        hers = ground / "hers"
        Component(MALLORY.pw_uid, MALLORY.pw_gid, 0o755).make(hers, hers)
        Component(VICTIM.pw_uid, VICTIM.pw_gid, 0o700).make(hers / "inner", hers)
        way = ground / "way"
        way.mkdir()
        (way / "through").symlink_to("../hers/inner")
        (way / "round").symlink_to("round")
        (way / "back").symlink_to(f"{way}/../way")
        with pytest.raises(Denied, match="hers belongs to backup, who could put anything there"):
            trusted_directory(way / "through")
        with pytest.raises(Unavailable, match="symbolic links"):
            trusted_directory(way / "round")
        assert trusted_directory(way / "back").inode == way.stat().st_ino


def test_an_access_list_that_lets_others_write_is_seen():
    nobody = 2**32 - 1
    entries = [(1, 7, nobody), (2, 7, MALLORY.pw_uid), (4, 7, nobody), (16, 7, nobody), (32, 5, nobody)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    with common_ground() as ground:
        place = ground / "place"
        Component(VICTIM.pw_uid, VICTIM.pw_gid, 0o770).make(place, place)
        assert as_user(VICTIM, lambda: verdict(str(place))) == ""
        try:
            os.setxattr(place, "system.posix_acl_access", acl)
        except OSError as error:
            pytest.skip(f"this file system has no access lists: {error}")
        assert "may be written by the group games" in as_user(VICTIM, lambda: verdict(str(place)))


def test_what_is_made_is_its_makers_alone_and_what_was_made_by_others_is_refused():
    with common_ground() as ground:

        def make(name):
            try:
                made = trusted_directory(ground / name / "carrel" / "lab", make=True, private=True)
            except Denied as error:
                return error.message
            return stat.S_IMODE(made.path.stat().st_mode)

        assert as_user(VICTIM, lambda: make("victim")) == 0o700
        assert as_user(VICTIM, lambda: make("victim")) == 0o700
        as_user(MALLORY, lambda: (ground / "next" / "carrel").mkdir(parents=True))
        assert f"{ground}/next belongs to backup" in as_user(VICTIM, lambda: make("next"))


def test_a_directory_that_was_exchanged_after_the_check_is_noticed():
    with common_ground() as ground:
        for name in ("mine", "other"):
            (ground / name).mkdir(mode=0o700)
        trusted = trusted_directory(ground / "mine")
        trusted.check()
        (ground / "mine").rename(ground / "old")
        (ground / "other").rename(ground / "mine")
        with pytest.raises(Denied, match="not the directory any more"):
            trusted.check()


def test_a_file_is_read_only_where_nobody_else_could_have_written_it():
    with common_ground() as ground:
        (ground / "people.toml").write_text("here")
        with open(open_trusted(ground / "people.toml")) as file:
            assert file.read() == "here"
        (ground / "people.toml").chmod(0o666)
        with pytest.raises(Denied, match="may be written by everybody"):
            open_trusted(ground / "people.toml")
        as_user(MALLORY, lambda: Path(ground / "hers.toml").touch())
        with pytest.raises(Denied, match="hers.toml belongs to backup"):
            open_trusted(ground / "hers.toml")
        os.mkfifo(ground / "pipe")
        with pytest.raises(Denied, match="is no file"):
            open_trusted(ground / "pipe")
