"""The part of a client that is about challenges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from carrel.client.transport import Transport
from carrel.core.domain.challenge import Board, Challenge, ChallengeLines, ChallengeView, SubmissionList, SubmissionView, TeamView
from carrel.core.domain.errors import Conflict
from carrel.wire import v1


class ChallengeCalls:
    """The part of a `carrel.Client` that is about challenges."""

    _http: Transport
    upload: Callable[[Path], str]

    def challenges(self) -> ChallengeLines:
        """Those that one may see."""
        return v1.value_of(ChallengeLines, self._http.get(v1.shown_of(ChallengeLines), "/challenges"))

    def challenge(self, name: str) -> ChallengeView:
        """One challenge, with what is left to one's team."""
        return v1.value_of(ChallengeView, self._http.get(v1.shown_of(ChallengeView), _path(name)))

    def keep_challenge(self, directory: Path) -> Challenge:
        """Send a directory as a draft. Its baselines begin."""
        request = v1.CodeRequest(snapshot=self.upload(directory))
        return v1.value_of(Challenge, self._http.post(v1.shown_of(Challenge), "/challenges", request))

    def challenge_checks(self, name: str) -> SubmissionList:
        """The baselines of the draft, as they are doing."""
        return self._submissions(f"{_path(name)}/checks")

    def publish_challenge(self, name: str) -> Challenge:
        """Show the draft to everybody."""
        return v1.value_of(Challenge, self._http.post(v1.shown_of(Challenge), f"{_path(name)}/publish"))

    def freeze_challenge(self, name: str) -> Challenge:
        """End it."""
        return v1.value_of(Challenge, self._http.post(v1.shown_of(Challenge), f"{_path(name)}/freeze"))

    def join_challenge(self, name: str, *, team: str = "", code: str = "", accept_rules: bool = False) -> TeamView:
        """Take part: in a new team, or in the one that has this code."""
        request = v1.TeamRequest(team=team, code=code, accept_rules=accept_rules)
        return v1.value_of(TeamView, self._http.post(v1.shown_of(TeamView), f"{_path(name)}/join", request))

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

    def submit_to_challenge(self, name: str, directory: Path) -> SubmissionView:
        """Send a directory of code to the phase of now."""
        request = v1.CodeRequest(snapshot=self.upload(directory))
        found = self._http.post(v1.shown_of(SubmissionView), f"{_path(name)}/submissions", request)
        return v1.value_of(SubmissionView, found)

    def challenge_submissions(self, name: str) -> SubmissionList:
        """Those of one's team, newest first; organisers get those of all."""
        return self._submissions(f"{_path(name)}/submissions")

    def challenge_submission(self, name: str, number: int) -> SubmissionView:
        """One of them."""
        found = self._http.get(v1.shown_of(SubmissionView), f"{_path(name)}/submissions/{number}")
        return v1.value_of(SubmissionView, found)

    def challenge_log(self, name: str, number: int) -> str:
        """The end of the log of a submission's last job; for organisers."""
        return self._http.call("GET", f"{_path(name)}/submissions/{number}/log").text

    def challenge_board(self, name: str, phase: str | None = None) -> Board:
        """The board of a phase, by default of that of now."""
        params = {} if phase is None else {"phase": phase}
        return v1.value_of(Board, self._http.get(v1.shown_of(Board), f"{_path(name)}/board", params=params))

    def try_challenge(self, name: str, directory: Path) -> v1.DryRunView:
        """Run a directory of code on training data, as two jobs of one's own."""
        return self._http.post(v1.DryRunView, f"{_path(name)}/try", v1.CodeRequest(snapshot=self.upload(directory)))

    def _submissions(self, path: str) -> SubmissionList:
        return v1.value_of(SubmissionList, self._http.get(v1.shown_of(SubmissionList), path))


def _path(name: str) -> str:
    return f"/challenges/{quote(name, safe='')}"
