"""Secrets, as one user sees them: by name."""

from __future__ import annotations

from urllib.parse import quote

from carrel.client.nouns import NounCalls
from carrel.core.domain.nouns import SECRETS
from carrel.core.domain.secret import Secret
from carrel.wire import v1


class SecretCalls(NounCalls):
    """The part of a `carrel.Client` that is about what one keeps for one's jobs."""

    def secrets(self) -> list[Secret]:
        """One's own, by name. Nobody is shown a value again."""
        return self.all_of(SECRETS)

    def set_secret(self, name: str, value: str) -> bool:
        """Keep a value for jobs that name it, in the place of an earlier one; return whether there was none."""
        request = v1.asked_of(SECRETS).model_validate({"value": value})
        return self._http.put(v1.SecretChange, f"/secrets/{quote(name, safe='')}", request).created

    def remove_secret(self, name: str) -> None:
        """Forget a value. Jobs that run keep what they were given."""
        self.remove(SECRETS, name)
