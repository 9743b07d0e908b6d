"""Addresses of inputs in git repositories: which of them git may be given, and what they name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from carrel.node.staging.failed import InputFailed

_SCHEMES = ("git+https", "git+http", "git+ssh", "git+file")
#: A branch, a tag, a full name (refs/…) or a commit, without what git-check-ref-format(1) forbids or git takes for an option.
_REF = re.compile(r"(?!-)(?!.*(?:\.\.|@\{|//|/-|\.lock(?:/|$)))[^\x00-\x20\x7f~^:?*\[\\]{1,250}(?<![/.])")
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._+-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_FORM = "Write it like git+https://host/owner/repository.git@v1.0#subdirectory=data."


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What an address names."""

    scheme: str
    #: For git: without ref, fragment and "git+".
    url: str
    #: "": what the repository's HEAD is.
    ref: str
    #: A directory, or a file, in it; "": all of it.
    inside: str

    def pinned(self, commit: str) -> str:
        """The address of the same at a commit: what it is today stays what it is."""
        return f"git+{self.url}@{commit}" + (f"#subdirectory={self.inside}" if self.inside else "")


def read_address(uri: str) -> Repository:
    """Return what `uri` names. Raises `InputFailed` for what git should not be given."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise InputFailed(f'"{uri[:200]}" is no address of a git repository.', remedy=_FORM) from None
    at, separator, ref = parts.path.rpartition("@")
    path, ref = (at, unquote(ref)) if separator else (parts.path, "")
    more = dict(parse_qsl(parts.fragment, keep_blank_values=True))
    inside = more.pop("subdirectory", "").strip("/")
    more.pop("egg", None)
    local = parts.scheme == "git+file"
    wrong = (
        parts.scheme not in _SCHEMES
        or (bool(parts.netloc) if local else not _HOST.fullmatch(parts.netloc))
        or (parts.scheme in ("git+https", "git+http") and "@" in parts.netloc)
        or port == 0
        or not path.strip("/")
        or any(ord(letter) <= 32 or ord(letter) == 127 for letter in unquote(path))
        or parts.query
        or bool(separator and not _REF.fullmatch(ref))
        or more
        or not all(map(is_name, inside.split("/") if inside else ()))
    )
    if wrong:
        raise InputFailed(f'"{uri[:200]}" is no address of a git repository that is fetched here.', remedy=_FORM)
    scheme = parts.scheme.removeprefix("git+")
    return Repository(scheme=scheme, url=f"{scheme}://{parts.netloc}{path}", ref=ref, inside=inside)


def is_name(part: str) -> bool:
    """Whether it may be a file's or directory's name here: a planted ".git" would be believed by the task's own git."""
    return part not in ("", ".", "..") and part.lower() != ".git" and "\0" not in part
