"""People."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.challenge import PROGRAMS
from carrel.core.domain.errors import Conflict, Invalid


class Role(StrEnum):
    """What a user may do beyond their own work."""

    USER = "user"
    #: Sees and cancels the jobs of the accounts that they are a member of.
    MANAGER = "manager"
    #: Sees and cancels everybody's jobs, drains and reserves nodes; reads nobody's files or logs, manages no users.
    OPERATOR = "operator"
    ADMIN = "admin"


class UserState(StrEnum):
    """Whether a user may do anything now."""

    ACTIVE = "active"
    #: Nothing of theirs is accepted or starts, until an administrator lets them go on.
    SUSPENDED = "suspended"
    #: They are gone, and their records stay.
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A person. Identified by `subject` alone, which never changes; `name` is for display."""

    subject: str
    name: str
    role: Role = Role.USER
    #: The research account that use is charged to when a task names none.
    account: str = "default"
    #: Research accounts that the groups of their sign-in provider make them a member of, beside those that name them.
    member_of: frozenset[str] = frozenset()
    state: UserState = UserState.ACTIVE
    #: Why, by whom (a subject) and since when (Unix seconds) they are in that state.
    state_reason: str = ""
    state_by: str = ""
    state_since: float | None = None
    #: When all their tokens were revoked last (Unix seconds): those of jobs that were submitted before are void, too.
    revoked_at: float | None = None
    #: Who they are at a sign-in provider (its address and its name for them, with a space between); in lists of users only.
    linked_to: str = ""

    @property
    def person(self) -> bool:
        """False for the user as whom the programs of a challenge run."""
        return not self.subject.startswith(PROGRAMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a call: a user, or one job of a user. `carrel.core.policy.access` says what they may."""

    user: User
    #: The job whose token was shown, or None for the user in person.
    job_id: int | None = None
    #: Its attempt.
    attempt: int | None = None
    #: Accounts that they are a member of.
    accounts: frozenset[str] = frozenset()
    #: What the token that was shown is good for (`carrel.core.policy.access.SCOPES`).
    scopes: frozenset[str] = frozenset({"all"})
    #: The number of that token; None for a job's.
    token_id: int | None = None
    #: Unix seconds at which it ends by itself; None: it does not.
    until: float | None = None
    #: The only account that the token's jobs are charged to; None: any of the user's.
    account: str | None = None


#: Words that stand for many users, for the caller or for the site where a user may be named.
_WORDS = frozenset({"all", "me", "site"})
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: What looks like another letter: I, 1 and 0, Latin, Cyrillic, Greek (those of Unicode's confusables.txt that one meets).
_LOOKS = str.maketrans(
    "I1|0ıɑɡІӀАВЕЅЈКМНОРСТУХаеѕіјорсухԁһԛԝӏΙΑΒΕΖΗΚΜΝΟΡΤΥΧαινορυ",
    "llloiagllabesjkmhopctyxaesijopcyxdhqwllabezhkmnoptyxaivopu",
)
#: The first words of Unicode's names of characters that East Asian names mix.
_EAST_ASIAN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO"})


def check_name(name: str, taken: Iterable[str]) -> None:
    """Raise `Invalid` for what cannot be the name of a new user, `Conflict` for one that looks like a name that is `taken`."""
    if not name or len(name) > 255 or not name.isprintable() or name != name.strip():
        raise Invalid(f'"{name[:300]}" is not a user name.', remedy="Use 1 to 255 printable characters, no blank at either end.")
    if name in {".", ".."}:  # in an address it stands for another place, so no request would reach this user
        raise Invalid(f'No user can be called "{name}": no address can say it.', remedy="Choose a name with a letter or a digit.")
    if name.casefold().startswith(PROGRAMS):
        raise Invalid(f'No user can be called "{name}": programs of challenges run under such names.', remedy="Choose another.")
    if name in _WORDS:
        raise Invalid(f'No user can be called "{name}": this word has a meaning where users are named.', remedy="Choose another.")
    if len(scripts := _scripts(name)) > 1:
        raise Invalid(
            f'"{name}" mixes characters of {" and ".join(scripts)}, and may look like another name.',
            remedy="Write the name in one alphabet.",
        )
    looks = _looks(name)
    alike = next((other for other in taken if other != name and looks & _looks(other)), None)
    if alike is not None:
        raise Conflict(
            f'"{name}" looks like "{alike}", the name of another user.',
            remedy=f'If it is the same person, use "{alike}". Else choose a name that differs in more than case, blanks or '
            "letters that look alike.",
        )


def _looks(name: str) -> frozenset[str]:
    """What a name looks like to one who passes over case, blanks and forms of a character, or takes a letter for another."""
    plain = "".join(unicodedata.normalize("NFKC", name).split())
    read = plain.translate(_LOOKS).replace("rn", "m").replace("vv", "w")
    return frozenset(unicodedata.normalize("NFKC", one.casefold()) for one in (plain, read))


def _scripts(name: str) -> Sequence[str]:
    """The scripts of a name; each sign beside ASCII's counts as one of its own, so that none is put in that is not seen."""
    seen = [char for char in unicodedata.normalize("NFKC", name) if char.isalpha() or not char.isascii()]
    found = [unicodedata.name(char, "?").partition(" ")[0] for char in seen]
    return sorted({"EAST ASIAN" if one in _EAST_ASIAN else one for one in found})


def directory_name(subject: str) -> str:
    """Return a name for what is one user's own, that of no other user: a plain subject as it is, others encoded.

    No plain subject begins with a "~", and a digest, which stands for a long one, ends with it.
    """
    if _PLAIN.fullmatch(subject):
        return subject
    data = subject.encode()
    return "~" + (data.hex() if len(data) <= 64 else hashlib.sha256(data).hexdigest() + "~")
