"""Records of any noun, as one user sees them: values of the very class that the lab keeps."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import quote

from carrel.client.transport import Transport
from carrel.core.domain.noun import Noun
from carrel.wire import v1

T = TypeVar("T")


class NounCalls:
    """The part of a `carrel.Client` that is the same for every noun."""

    _http: Transport

    def all_of(self, noun: Noun[T], **params: Any) -> list[T]:
        """All that one may see."""
        found = self._http.get(v1.list_of(noun), f"/{noun.plural}", params=params)
        return [v1.value_of(noun.type, one) for one in getattr(found, noun.plural)]

    def one_of(self, noun: Noun[T], key: str | int) -> T:
        """One of them."""
        return self._http.get(noun.type, _path(noun, key))

    def add(self, noun: Noun[T], asked: T) -> T:
        """Keep a new one; the lab numbers it."""
        request = v1.asked_of(noun).model_validate(asked, from_attributes=True)
        return self._http.post(noun.type, f"/{noun.plural}", request)

    def put(self, noun: Noun[T], asked: T) -> tuple[bool, T]:
        """Keep one in the place of one with the same key; return whether there was none like it, and what is kept."""
        request = v1.asked_of(noun).model_validate(asked, from_attributes=True)
        done = self._http.put(v1.change_of(noun), _path(noun, getattr(asked, noun.key)), request)
        return done.changed, v1.value_of(noun.type, getattr(done, noun.name))

    def remove(self, noun: Noun[T], key: str | int) -> None:
        """Forget one."""
        self._http.call("DELETE", _path(noun, key))


def _path(noun: Noun[Any], key: str | int) -> str:
    return f"/{noun.plural}/{quote(str(key), safe='')}"
