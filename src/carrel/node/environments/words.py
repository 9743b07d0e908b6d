"""What tools say, made fit for people: no terminal codes, no secrets, the part that matters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote, urlsplit

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])|[\x00-\x08\x0b-\x1f\x7f]")
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@'\"`<>]+(?:@[^/\s@'\"`<>]*)*@")
_CHATTER = re.compile(
    r"^\s*(Downloading|Downloaded|Building|Built|Prepared|Using|Resolved|Installed|Creating|Activate|Updating|Updated)\b"
)
_SLOW = re.compile(r"^\s*(Downloading|Building|Updating|Waiting)\b")
_FULL = re.compile(r"no space left on device|disk quota exceeded|\(os error (28|122)\)", re.IGNORECASE)
#: What uv says when no index answers (no network, no such host, a proxy that is not there), and when it was told to ask none.
_UNREACHED = re.compile(r"error sending request for url|network was disabled")
#: What to do then.
INDEX_REMEDY = (
    "Where the lab reaches no package index: name a mirror that it reaches, or a directory of wheels, as index-url or find-links "
    "in pip.conf of the lab's user (docs/environments.md, Mirrors and local wheels)."
)
#: A line of programs that log fields (skopeo, umoci).
_LOGFMT = re.compile(r'time="[^"]*" level=(\w+) msg="(.*)"$')
#: Lines of a tool's error that a message keeps: from its start, and from its end.
_FIRST, _LAST = 10, 20


class Redactor:
    """Takes secrets out of text: these literal ones, and all that stands before the @ of an address."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # Longest first, so that no part of a secret survives because a shorter one was replaced in it.
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)

    def clean(self, text: str) -> str:
        """Return `text` without terminal codes and secrets; "****" stands where a secret was."""
        text = _USERINFO.sub(r"\1****@", _ANSI.sub("", text))
        for secret in self._secrets:
            text = text.replace(secret, "****")
        return text


def secrets_in(url: str) -> frozenset[str]:
    """Return what is secret in an address, as written and decoded; a long user name alone is taken for a token.

    Very short ones are left to the rule for addresses: to replace them everywhere would make the text unreadable.
    """
    netloc = urlsplit(url).netloc
    if "@" not in netloc:
        return frozenset()
    user, colon, password = netloc.rpartition("@")[0].partition(":")
    secret, shortest = (password, 4) if colon else (user, 12)
    return frozenset(part for part in (secret, unquote(secret)) if len(part) >= shortest)


def without_userinfo(text: str) -> str:
    """Return `text` with user and password removed from every address in it."""
    return _USERINFO.sub(r"\1", text)


def _logged(line: str) -> str:
    """Return what a program says whose lines are fields (skopeo and umoci: logfmt)."""
    found = _LOGFMT.match(line)
    return line if found is None else f"{found[1]}: {found[2]}".replace('\\"', '"')


def essence(lines: Sequence[str]) -> str:
    """Return the error in a tool's output: from its first "error" line on, shortened in the middle when it is long."""
    lines = [_logged(line) for line in lines]
    start = next((number for number, line in enumerate(lines) if re.match(r"\s*(error|critical|fatal)\b", line, re.I)), None)
    kept = [line.rstrip() for line in lines[start or 0 :] if line.strip()]
    kept = [line for line in kept if start is not None or not _CHATTER.match(line)]
    if len(kept) > _FIRST + _LAST:
        left_out = len(kept) - _FIRST - _LAST
        kept = [*kept[:_FIRST], f"[… {left_out} lines; the log has them]", *kept[-_LAST:]]
    return "\n".join(line[:2000] for line in kept)


def is_progress(line: str) -> bool:
    """True for a line about something that takes time, worth telling the owner of the job."""
    return bool(_SLOW.match(line))


def without_index(text: str) -> bool:
    """True when a tool found no package index that answers."""
    return bool(_UNREACHED.search(text))


def says_full(text: str) -> bool:
    """True when a tool complains about a full disk or quota."""
    return bool(_FULL.search(text))
