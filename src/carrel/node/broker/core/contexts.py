"""CUDA contexts that leave their devices, too: taken by the driver's checkpoint after the state has gone over the bus.

A row says LEAVING from before the driver is asked and AWAY from after it until the context is back. Meanwhile the process cannot
call the driver, so its library gets no order that needs one: the context comes back first (`Restore`), then the state.
"""

from __future__ import annotations

from carrel.core.domain.lease import ContextPlace
from carrel.node.broker.core.effects import Action, Checkpoint, Restore
from carrel.node.broker.core.lender import Lender
from carrel.node.broker.core.rows import TenantRow
from carrel.node.suspension.ports import Ending, Moved

#: Seconds until a context that did not leave is tried again, doubled each time, and the longest pause.
_RETRY, _LONGEST_RETRY = 2.0, 60.0


class Contexts:
    """Decides about contexts for the core; `actions` are what is to be done once all is written down."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        self._ledger = lender.ledger
        #: Tenants whose context an earlier broker had begun to take off, until `recover`.
        self._begun_before: frozenset[str] = frozenset()
        self.actions: list[Action] = []

    def checkpoint(self, tenant: str) -> None:
        """Take the tenant's context off its devices; its state has left them."""
        row = self._ledger.tenants[tenant]
        row.context = ContextPlace.LEAVING.value
        self._ledger.touch(row)
        self._ask(row)

    def _ask(self, row: TenantRow) -> None:
        self.actions.append(Checkpoint(row.id, row.targets(), row.home, sum(row.fixed.values())))

    def checkpointed(self, tenant: str, moved: Moved) -> None:
        """Taking the context off has ended so. What did not begin leaves the process as it was, with its state where it is."""
        row = self._ledger.tenants.get(tenant)
        if row is None or row.context != ContextPlace.LEAVING:
            return
        if moved.cordon:
            self._ledger.cordon(row.home, f"cordoned: {moved.message}")
        self._lender.rates.note_context(moved)
        row.context = ContextPlace.DEVICE.value
        if moved.ending in (Ending.DONE, Ending.UNVERIFIED):
            # What the devices still show of it then is counted by what is seen there.
            row.context = ContextPlace.AWAY.value
        elif moved.ending is Ending.LOST:
            self._lender.lose(row, moved.message)
        elif moved.ending is Ending.UNSUSPENDABLE:
            # Its state goes on over the bus; the driver is not asked again.
            row.libraries = moved.libraries
            row.broken = "" if moved.libraries else moved.message or "the driver refuses to move it"
        elif moved.ending is not Ending.GONE:
            row.failures += 1
            row.retry_at = self._lender.now + min(_LONGEST_RETRY, _RETRY * 2 ** (row.failures - 1))
        self._ledger.touch(row)
        self._lender.look()

    def restore(self, tenant: str, lease: str | None) -> bool:
        """Bring the tenant's context back, if it is away, for its state follows. False where there is nothing to bring back."""
        row = self._ledger.tenants.get(tenant)
        if row is None or row.context == ContextPlace.DEVICE:
            return False
        devices = self._lender.devices
        memory = {uuid: devices[uuid].memory for uuid in row.home if uuid in devices}
        self.actions.append(Restore(row.id, lease, row.targets(), row.home, dict(row.fixed), memory, row.moves))
        return True

    def restored(self, tenant: str, moved: Moved) -> bool:
        """Bringing the context back has ended so. True when the process can call the driver again."""
        row = self._ledger.tenants.get(tenant)
        if row is None or moved.ending is not Ending.DONE:
            return False
        self._lender.rates.note_context(moved)
        # Where it is now, its state follows.
        row.context, row.left = ContextPlace.DEVICE.value, ()
        self._ledger.touch(row)
        self._lender.look()
        return True

    # --- after a restart ----------------------------------------------------------------------------------------------------

    def started(self) -> None:
        """Remember what an earlier broker had begun, before anything is decided."""
        self._begun_before = frozenset(row.id for row in self._ledger.tenants.values() if row.context == ContextPlace.LEAVING)

    def recover(self) -> None:
        """Ask the driver again for the contexts that an earlier broker had begun to take off."""
        before, self._begun_before = self._begun_before, frozenset()
        for row in self._ledger.tenants.values():
            if row.id in before and row.context == ContextPlace.LEAVING:
                self._ask(row)
