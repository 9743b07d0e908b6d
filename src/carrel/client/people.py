"""Users, tokens and secrets, as one user sees them."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from carrel.client.nouns import NounCalls
from carrel.wire import v1


class PeopleCalls(NounCalls):
    """The part of a `carrel.Client` that is about users, tokens and secrets. A lifetime of 0 seconds means: without an end."""

    def tokens(self, *, everybody: bool = False) -> list[v1.Token]:
        """One's tokens, or those of everybody (administrators); also those that are void."""
        return self.all_of(v1.TOKENS, all=everybody)

    def create_token(
        self, name: str = "", *, scopes: Sequence[str] = (), account: str | None = None, expires_in: int | None = None
    ) -> v1.MadeToken:
        """Make a token for no more than one's own is good for; it is not shown again."""
        asked = {"name": name, "scopes": list(scopes), "account": account, "expires_in": expires_in}
        return self._made("/tokens", v1.TokenRequest.model_validate(asked))

    def revoke_token(self, token_id: int | None = None) -> None:
        """End a token (default: the one that this client uses)."""
        self._http.call("DELETE", f"/tokens/{'current' if token_id is None else token_id}")

    def sign_in_link(self) -> str:
        """A link that signs one browser in to the lab's pages, once, within ten minutes, for as long as this token is good."""
        return self._http.post(v1.SessionLink, "/tokens/current/link").url

    def users(self, *, programs: bool = False) -> list[v1.UserView]:
        """All people; with `programs` also the users as whom the programs of challenges run (administrators)."""
        return self._http.get(v1.UserList, "/users", params={"all": "true"} if programs else {}).users

    def add_user(
        self, name: str, role: str = "user", *, expires_in: int | None = None, without_isolation: bool = False
    ) -> v1.NewUser:
        """Add a user; the token in the answer is not shown again (administrators).

        `without_isolation`: they may be trusted with the whole lab, where nothing keeps jobs apart.
        """
        asked = {"name": name, "role": role, "expires_in": expires_in, "without_isolation": without_isolation}
        return self._http.post(v1.NewUser, "/users", v1.UserRequest.model_validate(asked))

    def reset_user(self, subject: str, *, expires_in: int | None = None) -> v1.NewUser:
        """Give a user a new token in the place of all others (administrators)."""
        return self._http.post(v1.NewUser, self._user(subject, "reset"), v1.ResetRequest(expires_in=expires_in))

    def suspend_user(self, subject: str, reason: str = "", *, cancel_running: bool = False) -> v1.UserChange:
        """Accept and start nothing of a user's any more (administrators)."""
        request = v1.SuspendRequest(reason=reason, cancel_running=cancel_running)
        return self._http.post(v1.UserChange, self._user(subject, "suspend"), request)

    def resume_user(self, subject: str) -> v1.UserChange:
        """Let a user go on who was suspended or removed (administrators)."""
        return self._http.post(v1.UserChange, self._user(subject, "resume"))

    def remove_user(self, subject: str) -> v1.UserChange:
        """End everything of a user's but their records (administrators)."""
        return self._http.delete(v1.UserChange, f"/users/{quote(subject, safe='')}")

    def invite_user(
        self, name: str, role: str = "user", *, expires_in: int | None = None, without_isolation: bool = False
    ) -> v1.Invitation:
        """Make a code that somebody can exchange once for a token of their own (administrators)."""
        asked = {"name": name, "role": role, "expires_in": expires_in, "without_isolation": without_isolation}
        return self._http.post(v1.Invitation, "/invitations", v1.InvitationRequest.model_validate(asked))

    def redeem_invitation(self, name: str = "") -> v1.MadeToken:
        """Exchange the invitation that this client has as its token."""
        return self._made("/invitations/current/redeem", v1.RedeemRequest(name=name))

    def revoke_tokens(self, subject: str) -> None:
        """No token of the user is valid any more (administrators)."""
        self._http.call("POST", self._user(subject, "revoke"))

    def secrets(self) -> list[v1.Secret]:
        """One's own, by name. Nobody is shown a value again."""
        return self.all_of(v1.SECRETS)

    def set_secret(self, name: str, value: str) -> bool:
        """Keep a value for jobs that name it, in the place of an earlier one; return whether there was none."""
        request = v1.asked_of(v1.SECRETS).model_validate({"value": value})
        return self._http.put(v1.SecretChange, f"/secrets/{quote(name, safe='')}", request).created

    def remove_secret(self, name: str) -> None:
        """Forget a value. Jobs that run keep what they were given."""
        self.remove(v1.SECRETS, name)

    def _user(self, subject: str, what: str) -> str:
        return f"/users/{quote(subject, safe='')}/{what}"

    def _made(self, path: str, request: v1.Request) -> v1.MadeToken:
        return self._http.post(v1.MadeToken, path, request)
