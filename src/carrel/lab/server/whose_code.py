"""Where jobs run as their owners, the lab's own user runs no code of users: such code could act as the lab.

That user's files are the lab's token and secret, its database and everybody's outputs, and the rule of sudo lets that user act as
everybody who has a deputy. What would run here as that user is refused, unless an administrator has said that it may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrel.core.domain.errors import Denied, Invalid
from carrel.core.domain.partition import read_cluster
from carrel.core.submission.own_name import own_name
from carrel.lab.server.identity import Identity, read_identity

if TYPE_CHECKING:
    from carrel.core.domain.launch import Launch
    from carrel.lab.server.settings import Settings

#: The setting that lets it be.
SETTING = "run_users_code_as_lab"
_TRUSTED = f"where every user may be trusted with the whole lab, {SETTING} = true"


def check_safe(settings: Settings) -> None:
    """Raise `Invalid` for settings by which users' code would run as the lab's own user on a cluster."""
    identity = read_identity(settings.slurm_identity)
    if settings.run_users_code_as_lab or identity.kind == "owner":
        return
    own = own_name()
    could = f"could read the lab's token and act as every user. Write slurm_identity as docs/slurm.md says; or, {_TRUSTED}."
    if identity.kind == "lab":
        raise Invalid(
            f'slurm_identity = "lab" runs everybody\'s jobs as {own}, who runs the lab.', remedy=f"Each of them {could}"
        )
    partitions = settings.rules.partitions.values()
    local = [part.name for part in partitions if not part.cluster]
    if local or not partitions:
        what = f"Jobs of partition {', '.join(local)}" if local else "Jobs of a lab without partitions of a cluster"
        raise Invalid(
            f"{what} would run on this machine as {own}, who runs the lab, although slurm_identity has jobs run as their owners.",
            remedy=f"Each of them could read the lab's token and act as every user. Leave only partitions of the cluster; or, "
            f"{_TRUSTED}.",
        )


class WhoseCode:
    """Says whose code may run on the lab's machine as the lab's own user."""

    def __init__(self, identity: Identity, *, allowed: bool) -> None:
        """`allowed`: everybody's, as an administrator has said (`run_users_code_as_lab`)."""
        #: True where nobody's code runs on this machine but the lab's own user's.
        self.strict = identity.deputies and not allowed

    def check(self, subject: str) -> None:
        """Raise `Denied` unless code of `subject` may run here."""
        if not self.strict or subject == own_name():
            return
        raise Denied(
            f"What {subject} runs on the lab's own machine would run as {own_name()}, who runs the lab.",
            remedy="Use a partition of the cluster, where it runs as its owner; environments are made there, too.",
        )

    def check_launch(self, launch: Launch) -> None:
        """The same for a job that is to begin; one that begins here may have been submitted before the lab's settings changed."""
        if not read_cluster(launch.node)[0]:
            self.check(launch.owner)
