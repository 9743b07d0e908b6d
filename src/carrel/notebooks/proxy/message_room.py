"""Memory for messages of websockets. They are passed on whole, so what has come of one lies in the lab's memory until then."""

from __future__ import annotations

from collections import Counter

from carrel.notebooks import LARGEST_MESSAGE


class MessageRoom:
    """Bytes that the websockets of each user hold. Belongs to one event loop."""

    def __init__(self, most: int = 2 * LARGEST_MESSAGE) -> None:
        """`most`: bytes for all websockets of one user together."""
        self._most = most
        self._held: Counter[str] = Counter()

    def place(self, owner: str) -> Place:
        """Return the place of one more websocket of this user's."""
        return Place(self, owner)

    def hold(self, owner: str, more: int) -> bool:
        """Count bytes of this user's, or fewer of them; False when there are too many now."""
        self._held[owner] += more
        if self._held[owner] <= 0:
            del self._held[owner]
        return self._held.get(owner, 0) <= self._most


class Place:
    """What one websocket holds."""

    def __init__(self, room: MessageRoom, owner: str) -> None:
        self._room, self._owner, self._size = room, owner, 0

    def came(self, size: int) -> bool:
        """So many bytes came; False when its user has no room for them."""
        return self.holds(self._size + size)

    def holds(self, size: int) -> bool:
        """It has so many bytes now, all else was passed on; False when its user has no room for them."""
        more, self._size = size - self._size, size
        return self._room.hold(self._owner, more)
