"""What a job leaves on its node's disk: launch file, journal, log, working directory. Standard library only.

The runner writes it, the engine reads it, the gateway serves the log from it. A journal outlives every process: it is
the truth about an attempt, and sockets only say that there is something new to read.
"""

from carrel.core.spool.claim import Claim, note_begun, read_claim, take_claim
from carrel.core.spool.journal import Journal, append_entry, entry_from_plain, entry_to_plain, read_entries
from carrel.core.spool.layout import SESSION_SOCKET, AttemptDirectory, Spool
from carrel.core.spool.log import LogRange, LogWriter, read_log
from carrel.core.spool.preempt import read_preempt, write_preempt
