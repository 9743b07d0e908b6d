"""Secrets, as one user sees them: by name."""

from __future__ import annotations

from urllib.parse import quote

from carrel.client.transport import Transport
from carrel.wire import v1


class SecretCalls:
    """The part of a `carrel.Client` that is about what one keeps for one's jobs."""

    _http: Transport

    def secrets(self) -> list[v1.SecretView]:
        """One's own, by name. Nobody is shown a value again."""
        return self._http.get(v1.SecretList, "/secrets").secrets

    def set_secret(self, name: str, value: str) -> bool:
        """Keep a value for jobs that name it, in the place of an earlier one; return whether there was none."""
        request = v1.SecretRequest.model_validate({"value": value})
        return self._http.put(v1.SecretChange, f"/secrets/{quote(name, safe='')}", request).created

    def remove_secret(self, name: str) -> None:
        """Forget a value. Jobs that run keep what they were given."""
        self._http.call("DELETE", f"/secrets/{quote(name, safe='')}")
