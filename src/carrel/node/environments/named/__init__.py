"""Named environments: mutable virtual environments of one owner, in which sessions run and remember what was installed.

A runner calls `prepare_session_environment` before a session and `note_changes` while it runs; the server works with
`NamedEnvironments`. See docs/environments.md.
"""

from carrel.node.environments.named.changes import note_changes
from carrel.node.environments.named.making import Work
from carrel.node.environments.named.records import DEFAULT, EVERYBODY, SITE, SITE_WORD, Kind, LockNote, NamedRecord, full_name
from carrel.node.environments.named.session import SessionEnvironment, prepare_session_environment
from carrel.node.environments.named.store import LockText, NamedEnvironments, NamedInfo
