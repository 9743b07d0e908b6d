"""One lab's memory."""

from __future__ import annotations

import logging
import secrets
import time
from typing import TypeVar

import sqlalchemy as sa

from carrel.core.domain.noun import Noun
from carrel.core.domain.nouns import NOUNS
from carrel.core.domain.ports import Clock
from carrel.lab.store.baselines import BaselineTable, VerificationTable
from carrel.lab.store.calls import CallTable
from carrel.lab.store.cells import CellTable
from carrel.lab.store.credentials import CredentialTable
from carrel.lab.store.database import Database
from carrel.lab.store.events import EventTable
from carrel.lab.store.gpu_use import GpuUseTable
from carrel.lab.store.identities import IdentityTable
from carrel.lab.store.jobs import JobTable
from carrel.lab.store.outbox import OutboxTable
from carrel.lab.store.people import UserTable
from carrel.lab.store.records import Records
from carrel.lab.store.retention import RetentionTable
from carrel.lab.store.schema import prepare
from carrel.lab.store.sign_ins import SignInTable
from carrel.lab.store.start_ranges import StartRangeTable
from carrel.lab.store.sweeps import SweepTable
from carrel.lab.store.tables import lab, metadata
from carrel.lab.store.tokens import TokenTable

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Store:
    """Opens a database, makes its tables where it is empty, and offers them."""

    def __init__(self, database: Database, clock: Clock = time.time) -> None:
        prepare(database)
        self.database = database
        self.events = EventTable(database)
        self.jobs = JobTable(database, self.events)
        self.people = UserTable(database)
        self.tokens = TokenTable(database)
        self.sign_ins = SignInTable(database)
        self.credentials = CredentialTable(database)
        self.identities = IdentityTable(database)
        self._records = {noun.name: Records(database, metadata.tables[noun.plural], noun) for noun in NOUNS}
        self.cells = CellTable(database)
        self.gpu_use = GpuUseTable(database)
        self.calls = CallTable(database)
        self.start_ranges = StartRangeTable(database)
        self.sweeps = SweepTable(database, self.events)
        self.retention = RetentionTable(database)
        self.baselines = BaselineTable(database)
        self.verifications = VerificationTable(database, self.events)
        self.outbox = OutboxTable(database, self.events, clock)
        if mended := self.jobs.mend(clock()):
            _log.warning("%d rows of jobs and attempts had moments or seconds that no clock shows; they are corrected.", mended)

    def of(self, noun: Noun[T]) -> Records[T]:
        """The records of a noun."""
        return self._records[noun.name]

    def lab_id(self) -> str:
        """Name of this lab, unique in the world; made when first asked."""
        with self.database.write() as connection:
            known = connection.execute(sa.select(lab.c.value).where(lab.c.key == "lab_id")).scalar()
            if known is None:
                known = secrets.token_hex(6)
                connection.execute(sa.insert(lab), {"key": "lab_id", "value": known})
        return str(known)

    def next_number(self, of: str) -> int:
        """Return a number that is larger than all that were given for the same thing before, also before a restart."""
        with self.database.write() as connection:
            key = f"number of {of}"
            known = connection.execute(sa.select(lab.c.value).where(lab.c.key == key)).scalar()
            connection.execute(sa.delete(lab).where(lab.c.key == key))
            number = int(known or 0) + 1
            connection.execute(sa.insert(lab), {"key": key, "value": str(number)})
        return number

    def close(self) -> None:
        """Close all connections."""
        self.database.close()
