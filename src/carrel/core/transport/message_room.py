"""Memory for messages and requests that are passed on whole: what has come of one lies in the lab's memory until then."""

from collections import Counter


class MessageRoom:
    """Bytes that the connections of each user hold. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        """`most`: bytes for all connections of one user together."""
        self.most = most
        self._held: Counter[str] = Counter()

    def hold(self, owner: str, more: int) -> bool:
        """Count bytes of this user's, or fewer of them; False when there are too many now."""
        self._held[owner] += more
        if self._held[owner] <= 0:
            del self._held[owner]
        return self._held.get(owner, 0) <= self.most


class Place:
    """What one connection holds. Who it is may be known only when something comes."""

    def __init__(self, room: MessageRoom, owner: str = "") -> None:
        self._room, self._owner, self._size = room, owner, 0

    def came(self, size: int, owner: str = "") -> bool:
        """So many bytes came; False when its user has no room for them: it is to end, and is counted no more."""
        self._owner = self._owner or owner
        if self.holds(self._size + size):
            return True
        self.holds(0)
        return False

    def holds(self, size: int) -> bool:
        """It has so many bytes now, all else was passed on; False when its user has no room for them."""
        more, self._size = size - self._size, size
        return self._room.hold(self._owner, more)
