"""A .zip is unpacked, or refused in words: nothing is written outside of the directory, and no size in it is believed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.snapshots import uploads

HELLO = "print('hello')\n"


def zipped(files: dict[str, bytes | str], **how: int) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, **how) as archive:  # type: ignore[arg-type]
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def unzip(content: bytes, place: Path) -> dict[str, str]:
    """Unpack into a directory below `place`, and return what is there then."""
    (place / "code").mkdir()
    (place / "x.zip").write_bytes(content)
    uploads.unzip(place / "x.zip", place / "code")
    return {str(file.relative_to(place / "code")): file.read_text() for file in (place / "code").rglob("*") if file.is_file()}


def test_files_and_what_can_be_executed(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        program = zipfile.ZipInfo("bin/run.sh")
        program.external_attr = 0o100755 << 16
        archive.writestr(program, "echo hello\n")
        archive.writestr("windows\\names.py", HELLO)
        archive.writestr("empty/", "")
    assert unzip(data.getvalue(), tmp_path) == {"bin/run.sh": "echo hello\n", "windows/names.py": HELLO}
    modes = [(tmp_path / "code" / name).stat().st_mode & 0o777 for name in ("bin/run.sh", "windows/names.py")]
    assert modes == [0o755, 0o644]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda: b"PK no archive", "cannot be read"),
        (lambda: zipped({"../../escaped.py": HELLO}), "has an empty part"),
        (lambda: zipped({"/etc/escaped.py": HELLO}), "is absolute"),
        (lambda: zipped({"a.py": b"0" * (600 << 20)}, compresslevel=1), "holds more than 512M"),
        (lambda: zipped({f"{n}.py": b"" for n in range(20_001)}), "more than 20,000 files"),
        (lambda: zipped({"a": "1", "a/b.py": HELLO}), "is there twice"),
        (lambda: zipped({"a/" * 1500 + "a.py": HELLO}), "more than 64 directories"),
        (lambda: zipped({("a" * 250 + "/") * 8 + "a.py": HELLO}), "longer than 1024 bytes"),
        (lambda: zipped({"none.py": HELLO}).replace(b"none.py", b"\0one.py"), "cannot be read"),
        (lambda: zipped({"é.py": HELLO}).replace("é".encode(), b"\xff\xff"), "cannot be read"),
        (lambda: zipped({"a.py": HELLO})[:-6] + b"\xff" * 4 + b"\0\0", "cannot be read"),
    ],
    ids=["broken", "climbs", "absolute", "bomb", "many", "twice", "deep", "long", "empty-name", "no-utf8", "offset"],
)  # fmt: skip
def test_archives_that_are_refused(tmp_path: Path, content: Callable[[], bytes], said: str) -> None:
    with pytest.raises(Invalid) as refused:
        unzip(content(), tmp_path)
    assert said in f"{refused.value}"
    assert {file.name for file in tmp_path.iterdir()} == {"code", "x.zip"}


def test_a_list_of_files_that_would_fill_the_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_LIST", 1000)
    with pytest.raises(Invalid, match="more than 20,000 files"):
        unzip(zipped({f"{n}.py": b"" for n in range(50)}), tmp_path)


def test_links_and_other_compressions_are_refused(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        link = zipfile.ZipInfo("passwd")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(Invalid, match="is a symbolic link"):
        unzip(data.getvalue(), tmp_path)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.py", HELLO)
    (tmp_path / "other").mkdir()
    with pytest.raises(Invalid, match="neither stored nor deflated"):
        unzip(data.getvalue(), tmp_path / "other")
