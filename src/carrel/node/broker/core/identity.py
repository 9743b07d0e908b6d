"""Who a client is and what it may do, once it was let in."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a client may do."""

    role: str
    #: 0 for an observer of the whole node.
    job: int = 0
    attempt: int = 0
    #: Subject of the job's owner; "uid:1000" of one whose jobs run as themselves.
    owner: str = ""
    #: True for an observer of the whole node, who sees every name.
    sees_all: bool = False
    #: Devices that a cell gets.
    gpus: int = 0
    #: Devices that placement gave the job.
    assigned: tuple[str, ...] = ()
    #: True for kernels of a session that has devices of its own: they borrow none.
    reserved: bool = False
    #: The only devices that its cells can use; () for any.
    bound: tuple[str, ...] = ()
    #: Bytes of host memory that its job may have, moved state among them; 0 where the lab leaves room for that.
    memory: int = 0

    def as_role(self, role: str) -> Identity:
        """The same, in another role."""
        return replace(self, role=role)

    def may_see(self, owner: str) -> bool:
        """True when what belongs to `owner` is shown with names."""
        return self.sees_all or (self.owner != "" and owner == self.owner)
