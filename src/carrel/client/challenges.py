"""The part of a client that is about challenges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from carrel.client.transport import Transport
from carrel.core.domain.errors import Conflict
from carrel.wire import v1

#: Submissions that the lab is asked for at a time.
_PAGE = 500


class ChallengeCalls:
    """The part of a `carrel.Client` that is about challenges."""

    _http: Transport
    upload: Callable[[Path], str]

    def challenges(self) -> v1.ChallengeLines:
        """Those that one may see."""
        return self._http.get(v1.ChallengeLines, "/challenges")

    def challenge(self, name: str, *, draft: bool = False) -> v1.ChallengeView:
        """One challenge, with what is left to one's team; with `draft`, for organisers, as its draft will be."""
        params = {"draft": True} if draft else {}
        return self._http.get(v1.ChallengeView, _path(name), params=params)

    def keep_challenge(self, directory: Path) -> v1.Challenge:
        """Send a directory as a draft. Its baselines begin."""
        request = v1.CodeRequest(snapshot=self.upload(directory))
        return self._http.post(v1.Challenge, "/challenges", request)

    def challenge_checks(self, name: str) -> v1.SubmissionList:
        """The baselines of the draft, as they are doing."""
        return self._submissions(f"{_path(name)}/checks")

    def publish_challenge(self, name: str, *, reason: str = "", without_failed: bool = False) -> v1.Challenge:
        """Show the draft to everybody. A change of dates, limits, rules or boards needs a reason, which everybody is told.

        `without_failed`: what could not be scored again loses its place.
        """
        request = v1.PublishRequest(reason=reason, without_failed=without_failed)
        return self._http.post(v1.Challenge, f"{_path(name)}/publish", request)

    def rescore_challenge(self, name: str, *, ask: bool = True) -> v1.Rescore:
        """Score all submissions by the draft, and return old scores beside new ones; without `ask` only that."""
        call = self._http.post if ask else self._http.get
        return call(v1.Rescore, f"{_path(name)}/rescore")

    def challenge_record(self, name: str, number: int) -> dict[str, Any]:
        """What explains a score: all of it for organisers, for the team what tells nothing of the data."""
        found: dict[str, Any] = self._http.call("GET", f"{_path(name)}/submissions/{number}/record").json()
        return found

    def freeze_challenge(self, name: str) -> v1.Challenge:
        """End it."""
        return self._http.post(v1.Challenge, f"{_path(name)}/freeze")

    def join_challenge(
        self,
        name: str,
        *,
        team: str = "",
        code: str = "",
        accept_rules: bool = False,
        answers: Mapping[str, str] = MappingProxyType({}),
    ) -> v1.TeamView:
        """Take part: in a new team, or in the one that has this code. `answers` are to what the challenge asks."""
        request = v1.TeamRequest(team=team, code=code, accept_rules=accept_rules, answers=dict(answers))
        return self._http.post(v1.TeamView, f"{_path(name)}/join", request)

    def new_team_code(self, name: str) -> v1.TeamView:
        """Give one's team a new code; the one before is void."""
        return self._http.post(v1.TeamView, f"{_path(name)}/invite")

    def leave_challenge(self, name: str) -> None:
        """Leave one's team."""
        self._http.call("POST", f"{_path(name)}/leave")

    def merge_teams(self, name: str, *, code: str = "", team: str = "") -> v1.TeamView:
        """Ask the team with this code to merge, or agree with the one of this name that has asked."""
        request = v1.MergeRequest(code=code, team=team)
        return self._http.post(v1.TeamView, f"{_path(name)}/merge", request)

    def choose_submissions(self, name: str, numbers: Sequence[int]) -> v1.TeamView:
        """Choose which submissions go on to the next final."""
        request = v1.ChoiceRequest(submissions=list(numbers))
        return self._http.post(v1.TeamView, f"{_path(name)}/choose", request)

    def challenge_starter(self, name: str, directory: Path) -> None:
        """Write what the challenge begins with into a directory that is not there. Raises `Conflict`."""
        from carrel.core.snapshots.extraction import extract

        if directory.exists():
            raise Conflict(f"{directory} is there already.", remedy="Name another directory.")
        archive = directory.parent / f".{directory.name}.tar"
        archive.write_bytes(self._http.call("GET", f"{_path(name)}/starter").content)
        try:
            extract(archive, directory)
        finally:
            archive.unlink()

    def start_challenge(self, name: str) -> str:
        """Have what it begins with among the files of one's sessions; return its directory there."""
        return self._http.post(v1.StarterView, f"{_path(name)}/start").directory

    def submit_to_challenge(self, name: str, directory: Path) -> v1.SubmissionView:
        """Send a directory of code to the phase of now."""
        request = v1.CodeRequest(snapshot=self.upload(directory))
        return self._http.post(v1.SubmissionView, f"{_path(name)}/submissions", request)

    def challenge_submissions(self, name: str, *, limit: int | None = None) -> v1.SubmissionList:
        """Those of one's team, newest first; organisers get those of all. `limit`: so many at most; None: all, page by page."""
        there: tuple[v1.SubmissionView, ...] = ()
        query: dict[str, int] = {}
        while True:
            query["limit"] = _PAGE if limit is None else min(_PAGE, limit - len(there))
            found = self._submissions(f"{_path(name)}/submissions", query)
            there += found.submissions
            if found.next is None or (limit is not None and len(there) >= limit):
                return replace(found, submissions=there)
            query["before"] = found.next

    def challenge_submission(self, name: str, number: int) -> v1.SubmissionView:
        """One of them."""
        return self._http.get(v1.SubmissionView, f"{_path(name)}/submissions/{number}")

    def challenge_log(self, name: str, number: int) -> str:
        """The end of the log of a submission's last job, for organisers; its team gets what its code printed, where it may."""
        return self._http.call("GET", f"{_path(name)}/submissions/{number}/log").text

    def challenge_board(self, name: str, phase: str | None = None) -> v1.Board:
        """The board of a phase, by default of that of now."""
        params = {} if phase is None else {"phase": phase}
        return self._http.get(v1.Board, f"{_path(name)}/board", params=params)

    def challenge_notices(self, name: str) -> v1.NoticeList:
        """What it tells one, newest first."""
        return self._http.get(v1.NoticeList, f"{_path(name)}/notices")

    def announce_in_challenge(self, name: str, text: str) -> v1.ChallengeNotice:
        """Tell everybody something; for organisers."""
        return self._notice(f"{_path(name)}/notices", v1.TextRequest(text=text))

    def ask_in_challenge(self, name: str, text: str) -> v1.ChallengeNotice:
        """Ask the organisers something."""
        return self._notice(f"{_path(name)}/questions", v1.TextRequest(text=text))

    def answer_in_challenge(self, name: str, number: int, text: str, *, publish: bool = False) -> v1.ChallengeNotice:
        """Answer a question, to its asker or to everybody; for organisers."""
        return self._notice(f"{_path(name)}/questions/{number}/answer", v1.AnswerRequest(text=text, publish=publish))

    def change_quota(self, name: str, team: str, *, today: int = 0, total: int = 0, reason: str) -> v1.ChallengeNotice:
        """Give a team submissions more, or take some away; for organisers."""
        request = v1.QuotaRequest(team=team, today=today, total=total, reason=reason)
        return self._notice(f"{_path(name)}/quotas", request)

    def challenge_report(self, name: str) -> v1.ChallengeReport:
        """What became of it; for organisers."""
        return self._http.get(v1.ChallengeReport, f"{_path(name)}/report")

    def challenge_likeness(self, name: str, phase: str | None = None) -> v1.Likeness:
        """Pairs of teams whose best submissions in a phase, by default that of now, are alike; for organisers."""
        params = {} if phase is None else {"phase": phase}
        return self._http.get(v1.Likeness, f"{_path(name)}/likeness", params=params)

    def _notice(self, path: str, request: v1.TextRequest | v1.QuotaRequest) -> v1.ChallengeNotice:
        return self._http.post(v1.ChallengeNotice, path, request)

    def try_challenge(self, name: str, directory: Path) -> v1.DryRunView:
        """Run a directory of code on training data, as two jobs of one's own."""
        return self._http.post(v1.DryRunView, f"{_path(name)}/try", v1.CodeRequest(snapshot=self.upload(directory)))

    def challenge_samples(self, name: str) -> v1.SampleList:
        """Files of the training data that are shown one by one, what was shown, and how many are left today."""
        return self._http.get(v1.SampleList, f"{_path(name)}/samples")

    def challenge_sample(self, name: str, sample: str) -> bytes:
        """The content of one of them. It counts today, unless one's team has seen it before."""
        return self._http.call("POST", f"{_path(name)}/samples", json={"sample": sample}).content

    def _submissions(self, path: str, query: Mapping[str, int] = MappingProxyType({})) -> v1.SubmissionList:
        return self._http.get(v1.SubmissionList, path, params=query)


def _path(name: str) -> str:
    return f"/challenges/{quote(name, safe='')}"
