"""`carrel doctor slurm`: the cluster that the partitions of the lab are on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from carrel.cli.doctor import program
from carrel.cli.doctor.check import Check
from carrel.core.domain.errors import CarrelError
from carrel.core.submission.installed import install_command

if TYPE_CHECKING:
    from carrel.lab.server.home import LabHome
    from carrel.lab.server.settings import Settings

#: Seconds that a lab on this machine has for taking a connection.
_ANSWER = 5.0


def slurm_checks(place: Path, patience: float, person: str | None) -> Iterator[Check]:
    """What there is to say of the cluster that the lab in `place` uses, or is to use."""
    missing = program.missing()
    if missing:
        yield Check("server", "fail", f"{', '.join(missing)} not installed.", install_command("server"))
        return
    from carrel.core.domain.qos import JobKind
    from carrel.core.policy.partitions import partitions_for
    from carrel.engines.slurm.commands import SlurmCommands
    from carrel.engines.slurm.survey import Survey
    from carrel.lab.server.home import LabHome
    from carrel.lab.server.settings import read_settings
    from carrel.lab.server.slurm import missing_programs
    from carrel.lab.server.whose_code import check_safe

    home = LabHome(place)
    try:
        settings = read_settings(home.settings, os.environ, {})
    except CarrelError as error:
        yield Check("settings", "fail", error.message, error.remedy)
        return
    absent = missing_programs(os.environ)
    if absent:
        message = f"{', '.join(absent)} not found on this machine."
        yield Check(
            "programs", "fail", message, "Install Slurm's commands here (Debian: slurm-client), in the cluster's version."
        )
        return
    yield Check("programs", "ok", "sbatch, squeue, scontrol, scancel and sacct are here")
    try:
        check_safe(settings)
    except CarrelError as error:
        yield Check("safety", "fail", error.message, error.remedy)
    home.create()
    yield from _identity(settings, person, home)
    rules = settings.rules
    commands = SlurmCommands(environ=os.environ)
    survey = Survey(
        commands,
        home=place,
        url=(settings.slurm_url or running) if (running := _answering(home.read_address())) else "",
        partitions=tuple(rules.partitions.values()),
        interactive=[part.name for part in partitions_for(JobKind.SESSION, rules.qos, rules.partitions)],
        broker=settings.slurm_broker,
        lends=settings.slurm_lend,
        patience=patience,
    )
    for found in survey.findings():
        yield Check(found.name, found.status, found.message, found.remedy)


def _answering(url: str | None) -> str:
    """Return the address at which the lab was started last, if somebody listens there; "" otherwise."""
    parts = urlsplit(url or "")
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_ANSWER).close()
    except (OSError, ValueError):
        return ""
    return url or ""


def _identity(settings: Settings, person: str | None, home: LabHome) -> Iterator[Check]:
    """Who jobs run as, and whether that works for `person`."""
    from carrel.engines.deputy.trial import changeable, try_deputy
    from carrel.lab.server.identity import UnixUsers, deputy_command, read_identity
    from carrel.lab.server.signing import LabKey

    identity, template = read_identity(settings.slurm_identity), settings.slurm_deputy
    yield Check("identity", "ok", identity.describe())
    if not identity.deputies and person is None:
        return
    key = LabKey(home)
    remedy = f'lab_key = "{key.public}" in the deputies\' configuration keeps them for this lab.'
    yield Check("key", "ok", "deputies and nodes run what this lab has signed", remedy)
    own = changeable(deputy_command(template, "somebody"))
    if own is not None:
        remedy = "Install it where only root can write: otherwise somebody who takes over the lab decides what sudo starts."
        yield Check("deputy", "warn", f"The lab's own user can change {own}.", remedy)
    if person is None:
        yield Check("deputy", "warn", "Nobody was tried.", "`carrel doctor slurm --as USER` tries one.")
        return
    try:
        user = UnixUsers(identity, as_lab=settings.run_users_code_as_lab).of(person)
        if not user:
            yield Check("deputy", "ok", f"{person} is the lab's own user and needs no deputy")
            return
        trial = try_deputy(deputy_command(template, user), signer=key)
    except CarrelError as error:
        yield Check("deputy", "fail", f"{person}: {error.message}", error.remedy or "docs/slurm.md has the rule for sudo.")
        return
    if trial.user != user:
        yield Check("deputy", "fail", f"The deputy of {user} runs as {trial.user}.", "Mend slurm_deputy.")
        return
    yield Check("deputy", "ok", f"{person} is {user} there; their jobs keep their files in {Path(trial.directory).parent}")
