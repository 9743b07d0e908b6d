"""Snapshots arrive whole or not at all, and nothing in one can write elsewhere."""

import errno
import io
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import CarrelError, Conflict, Invalid, NotFound, StorageFull
from carrel.core.snapshots import Entry, Kind, SnapshotStore, extract, manifest_digest, pack
from carrel.testing.waiting import PATIENCE
from support.examples import examples

Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, data: bytes = b"", **fields: object) -> Member:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def archive(*members: Member, format: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def link(name: str, target: str) -> Member:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def huge(format: int, size: int) -> bytes:
    info = tarfile.TarInfo("a")
    info.size = size
    return info.tobuf(format) + b"\0" * 1024


DIGEST = "sha256:" + "0" * 64
HOSTILE: dict[str, tuple[bytes, str]] = {
    "absolute": (archive(member("/etc/passwd", b"x")), "is absolute"),
    "parent": (archive(member("../x", b"x")), 'has an empty part, "." or ".."'),
    "parent inside": (archive(member("a/../../x", b"x")), ".."),
    "dot": (archive(member("a/./x", b"x")), '"."'),
    "absolute link": (archive(link("a", "/etc")), "is absolute"),
    "link out": (archive(link("a", "../etc")), "leads outside"),
    "link out by a detour": (archive(member("d/x"), link("s", "."), link("e", "s/../../etc")), "behind a name"),
    "through a link": (archive(link("a", "."), member("a/x", b"x")), "which is not a directory"),
    "file as directory": (archive(member("a", b"x"), member("a/x", b"x")), "which is not a directory"),
    "directory first": (archive(member("a/x", b"x"), link("a", "b")), "which is not a directory"),
    "hard link": (archive(member("x", b"x"), member("y", type=tarfile.LNKTYPE, linkname="x")), "a hard link"),
    "device": (archive(member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)), "a device"),
    "block device": (archive(member("disk", type=tarfile.BLKTYPE, devmajor=8)), "a device"),
    "pipe": (archive(member("pipe", type=tarfile.FIFOTYPE)), "a pipe"),
    "setuid": (archive(member("su", b"x", mode=0o4755)), "setuid"),
    "twice": (archive(member("a", b"1"), member("a", b"2")), "there twice"),
    "twice by a dot": (archive(member("a", b"1"), member("./a", b"2")), "there twice"),
    "sparse": (archive(member("a", b"x", pax_headers={"GNU.sparse.size": "1099511627776"})), "GNU.sparse.size"),
    "size in an extended header": (archive(member("a", b"x", pax_headers={"size": "99999999999"})), "size"),
    "global header": (archive(member("a", type=tarfile.XGLTYPE)), "a global header"),
    "old sparse": (archive(member("a", type=b"S")), "a sparse file"),
    "unknown type": (archive(member("a", type=b"Z")), "type 'Z'"),
    "long name": (archive(member("a" * 300, b"x")), "is too long"),
    "huge extended header": (archive(member("a/" * 20000 + "a")), "extended header of"),
    "cut off": (archive(member("a", b"x" * 5000))[:2048], "longer than the archive"),
    "no end": (archive(member("a", b"x" * 512))[:1024], "cut off"),
    "not a tar": (b"hello" * 1000, "checksum"),
    "empty": (b"", "cut off"),
    "huge size": (huge(tarfile.USTAR_FORMAT, 0o77777777777), "longer than the archive"),
    "size beyond octal": (huge(tarfile.GNU_FORMAT, 2**40), "not an octal number"),
    "wrong checksum": (archive(member("a", b"x")).replace(b"a", b"b", 1), "checksum"),
    "directory out": (archive(member("../d", type=tarfile.DIRTYPE)), ".."),
    "gnu long name out": (archive(member("../" * 40 + "x"), format=tarfile.GNU_FORMAT), ".."),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(tmp_path: Path, name: str) -> None:
    data, says = HOSTILE[name]
    store = SnapshotStore(tmp_path / "store")
    with pytest.raises(Invalid) as caught:
        store.add(DIGEST, io.BytesIO(data))
    assert says in caught.value.message
    assert not list((tmp_path / "store").iterdir())
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(Invalid):
        extract(tmp_path / "a.tar", tmp_path / "inner" / "out")
    assert not list(tmp_path.glob("inner/*/*"))
    assert sorted(path.name for path in tmp_path.iterdir()) in (["a.tar", "store"], ["a.tar", "inner", "store"])


NAMES = st.sampled_from(["a", "b", "c", "..", ".", "", "a/b", "b/c"])
TARGETS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
MEMBERS = st.lists(
    st.one_of(
        st.builds(lambda path: member(path, b"x"), TARGETS),
        st.builds(link, TARGETS, TARGETS),
        st.builds(lambda path: member(path, type=tarfile.DIRTYPE), TARGETS),
    ),
    min_size=1,
    max_size=5,
)


def leads_in_a_circle(path: Path) -> bool:
    """Nobody gets anywhere by it, whatever Python makes of it: to `realpath` of 3.11 the link a -> a//a is /a."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@example([link("a", "a//a")])
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MEMBERS)
def test_nothing_is_ever_written_or_reached_outside(tmp_path_factory: pytest.TempPathFactory, members: list[Member]) -> None:
    top = tmp_path_factory.mktemp("top")
    (top / "a.tar").write_bytes(archive(*members))
    target = top / "in" / "out"
    try:
        extract(top / "a.tar", target)
    except CarrelError:
        return
    assert {path.name for path in top.iterdir()} <= {"a.tar", "in"}
    assert {path.name for path in (top / "in").iterdir()} <= {"out"}
    for path in target.rglob("*"):
        if not leads_in_a_circle(path):
            assert path.resolve().is_relative_to(target.resolve())


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=2000), st.integers(0, 3000))
def test_damaged_archives_are_refused_or_read_never_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    good = archive(member("a.py", b"x" * 700), link("l", "a.py"), member("d/" + "n" * 120, b"y"))
    top = tmp_path_factory.mktemp("top")
    (top / "a.tar").write_bytes(good[:at] + noise + good[at + len(noise) :])
    try:
        extract(top / "a.tar", top / "out")
    except CarrelError:
        assert not (top / "out").exists() or not list((top / "out").iterdir())


def code(root: Path) -> Path:
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("print(1)")
    (root / "pkg" / "run.sh").write_text("true")
    (root / "pkg" / "run.sh").chmod(0o700)
    (root / "link").symlink_to("pkg/run.sh")
    return root


def test_there_and_back(tmp_path: Path) -> None:
    packed = pack(code(tmp_path / "code"))
    store = SnapshotStore(tmp_path / "store")
    assert not store.has(packed.digest)
    with packed.open() as file:
        store.add(packed.digest, file)
    assert store.has(packed.digest)
    assert store.path(packed.digest) == tmp_path / "store" / (packed.digest.removeprefix("sha256:") + ".tar")
    old = os.umask(0o077)
    try:
        store.extract(packed.digest, tmp_path / "out" / "here")
    finally:
        os.umask(old)
    out = tmp_path / "out" / "here"
    assert pack(out).digest == packed.digest
    assert (out / "train.py").stat().st_mode & 0o7777 == 0o644
    assert (out / "pkg" / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (out / "pkg").stat().st_mode & 0o7777 == 0o755
    with pytest.raises(Conflict, match="not empty"):
        store.extract(packed.digest, out)
    store.remove(packed.digest)
    store.remove(packed.digest)
    assert not store.has(packed.digest)
    with pytest.raises(NotFound, match=packed.digest):
        store.extract(packed.digest, tmp_path / "other")
    with pytest.raises(NotFound):
        store.files(packed.digest)


def test_archives_of_other_programs_are_read(tmp_path: Path) -> None:
    data = archive(
        member("./", type=tarfile.DIRTYPE), member("./d/", type=tarfile.DIRTYPE), member("./d/x.py", b"x", mtime=1.5, uname="me")
    )
    entry = Entry(path="d/x.py", size=1, sha256="2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881")
    store = SnapshotStore(tmp_path)
    store.add(manifest_digest([entry]), io.BytesIO(data))
    gnu = archive(member("n" * 120, b"x"), format=tarfile.GNU_FORMAT)
    store.add(manifest_digest([Entry(path="n" * 120, size=1, sha256=entry.sha256)]), io.BytesIO(gnu))


def test_the_wrong_content_is_refused(tmp_path: Path) -> None:
    packed = pack(code(tmp_path / "code"))
    store = SnapshotStore(tmp_path / "store")
    with packed.open() as file, pytest.raises(Invalid, match=f"{packed.digest}, not {DIGEST}"):
        store.add(DIGEST, file)
    with packed.open() as file, pytest.raises(Invalid, match="more than 100 bytes"):
        SnapshotStore(tmp_path / "store", limit=100).add(packed.digest, file)
    assert not list((tmp_path / "store").iterdir())


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:" + "A" * 64, "md5:" + "0" * 64, "sha256:../" + "0" * 61, "0" * 64])
def test_what_is_no_digest_is_refused(tmp_path: Path, digest: str) -> None:
    with pytest.raises(Invalid, match="not a digest"):
        SnapshotStore(tmp_path).has(digest)


def test_damage_on_disk_is_noticed_when_asked(tmp_path: Path) -> None:
    packed = pack(code(tmp_path / "code"))
    with packed.open() as file:
        data = file.read()
    (tmp_path / "a.tar").write_bytes(data.replace(b"print(1)", b"print(2)"))
    with pytest.raises(Invalid, match="has the digest"):
        extract(tmp_path / "a.tar", tmp_path / "out", digest=packed.digest)
    assert not (tmp_path / "out").exists()


class Slow(io.BytesIO):
    """Gives the archive in small pieces, and lets all adders begin before any goes on."""

    def __init__(self, data: bytes, barrier: threading.Barrier) -> None:
        super().__init__(data)
        self._barrier = barrier
        self._first = True

    def read(self, size: int | None = -1) -> bytes:
        if self._first:
            self._barrier.wait(PATIENCE)
            self._first = False
        return super().read(700)


def test_concurrent_adders_do_not_disturb_each_other(tmp_path: Path) -> None:
    packed = pack(code(tmp_path / "code"))
    with packed.open() as file:
        data = file.read()
    store = SnapshotStore(tmp_path / "store")
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def add() -> None:
        try:
            store.add(packed.digest, Slow(data, barrier))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures
    assert [path.name for path in (tmp_path / "store").iterdir()] == [packed.digest.removeprefix("sha256:") + ".tar"]
    store.extract(packed.digest, tmp_path / "out")
    assert pack(tmp_path / "out").digest == packed.digest


def in_child(work: Callable[[], None], expected: type[Exception]) -> bool:
    """Run `work` in a child whose files may not grow beyond 4 KiB, as on a full disk; tell whether it said so."""
    import resource
    import signal

    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            work()
        except expected:
            os._exit(0)
        except BaseException:  # noqa: BLE001
            os._exit(2)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_full_disk_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    root = code(tmp_path / "code")
    (root / "data.bin").write_bytes(b"x" * 20_000)
    packed = pack(root)
    with packed.open() as file:
        data = file.read()
    store = SnapshotStore(tmp_path / "store")
    assert in_child(lambda: store.add(packed.digest, io.BytesIO(data)), StorageFull)
    assert not list((tmp_path / "store").iterdir())
    store.add(packed.digest, io.BytesIO(data))
    assert in_child(lambda: store.extract(packed.digest, tmp_path / "out"), StorageFull)
    assert not list((tmp_path / "out").iterdir())


def test_a_stream_that_breaks_leaves_nothing_behind(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.ECONNRESET, "connection reset")

    with pytest.raises(ConnectionResetError):
        SnapshotStore(tmp_path / "store").add(DIGEST, Broken())
    assert not list((tmp_path / "store").iterdir())


def test_what_killed_adders_left_is_swept(tmp_path: Path) -> None:
    packed = pack(code(tmp_path / "code"))
    store = SnapshotStore(tmp_path / "store")
    assert store.sweep(before=1e12) == 0
    with packed.open() as file:
        store.add(packed.digest, file)
    old, new = tmp_path / "store" / ".partial-old.tar", tmp_path / "store" / ".partial-new.tar"
    for path, at in ((old, 100), (new, 300)):
        path.touch()
        os.utime(path, (at, at))
    assert store.sweep(before=200) == 1
    assert (old.exists(), new.exists(), store.has(packed.digest)) == (False, True, True)


def test_files_are_read_in_place(tmp_path: Path) -> None:
    root = code(tmp_path / "code")
    (root / "pkg" / "up").symlink_to("../train.py")
    (root / "loop").symlink_to("loop")
    (root / "dir").symlink_to("pkg")
    packed = pack(root)
    store = SnapshotStore(tmp_path / "store")
    with packed.open() as file:
        store.add(packed.digest, file)
    files = store.files(packed.digest)
    assert sorted(files.names()) == ["dir", "link", "loop", "pkg", "train.py"]
    assert {path: files.kind(path) for path in ("train.py", "pkg", "dir", "dir/up", "link", "loop", "absent", "../x", ".")} == {
        "train.py": "file",
        "pkg": "directory",
        "dir": "directory",
        "dir/up": "file",
        "link": "file",
        "loop": None,
        "absent": None,
        "../x": None,
        ".": "directory",
    }
    assert files.read("dir/up", 100) == b"print(1)"
    with pytest.raises(Invalid, match="8 bytes"):
        files.read("train.py", 7)
    with pytest.raises(NotFound):
        files.read("absent", 7)
    inner = store.files(packed.digest, "pkg")
    assert inner.name == "pkg"
    assert inner.read("../train.py", 100) == b"print(1)"
    with pytest.raises(Invalid, match='no directory "absent"'):
        store.files(packed.digest, "absent")


def test_the_digest_is_what_it_was(tmp_path: Path) -> None:
    """The digest names snapshots on disk and in records: changing how it is computed orphans them."""
    entries = [
        Entry(path="train.py", executable=True, size=1, sha256="ab" * 32),
        Entry(path="link", kind=Kind.LINK, target="train.py"),
    ]
    assert manifest_digest(entries) == manifest_digest(entries[::-1])
    assert manifest_digest(entries) == "sha256:0aa65162085be9b20d7df3c70a7c440e70434bb973e264ae69c07498457623db"
