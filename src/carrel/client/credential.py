"""What the command line keeps of a sign-in: an access token, and what renews it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from carrel.core.domain.errors import Unauthenticated

#: Seconds before its end at which an access token is renewed: longer than any request waits for its answer.
_EARLY = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A token for a lab; one that somebody typed in has nothing but itself."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    #: Unix seconds, by this machine's clock; None: not known.
    expires_at: float | None = None
    #: Secret of a renewal whose answer has not come: the lab knows us by it when we ask again with the same refresh token.
    retry: str | None = field(default=None, repr=False)

    def due(self, now: float) -> bool:
        """Whether it is time to renew it."""
        return self.refresh_token is not None and self.expires_at is not None and now >= self.expires_at - _EARLY

    def to_text(self) -> str:
        """How it is kept: a token that somebody typed in as it is, one that is renewed as JSON."""
        if self.refresh_token is None:
            return self.access_token
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})

    @classmethod
    def of_text(cls, text: str, where: str) -> Credential:
        """What is kept. Raises `Unauthenticated` for what is none."""
        if not text.startswith("{"):
            return cls(access_token=text)
        try:
            found = json.loads(text)
            token, refresh, end, retry = (found.get(name) for name in cls.__slots__)
            if not (isinstance(token, str) and isinstance(refresh, str) and isinstance(retry, str | None)):
                raise TypeError
            return cls(access_token=token, refresh_token=refresh, expires_at=None if end is None else float(end), retry=retry)
        except (ValueError, TypeError, AttributeError):
            raise Unauthenticated(f"What {where} holds is not a sign-in.", remedy="Sign in again: `carrel login`.") from None
