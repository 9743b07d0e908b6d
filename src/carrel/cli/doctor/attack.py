"""`carrel doctor slurm --as USER`: the lab attacks itself, as a job of that user."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.cli.doctor.check import Check
from carrel.core.domain.errors import CarrelError

if TYPE_CHECKING:
    from carrel.engines.deputy.trial import Trial
    from carrel.lab.server.home import LabHome
    from carrel.lab.server.settings import Settings
    from carrel.lab.server.signing import LabKey


def attack_check(settings: Settings, home: LabHome, trial: Trial, key: LabKey, patience: float) -> Check:
    """Have a job of the user whose deputy was tried attack the lab; fail with what got through."""
    from carrel.engines.slurm.partition import slurm_of
    from carrel.lab.server.identity import deputy_command
    from carrel.lab.server.self_attack import attack

    partitions = [part for one in settings.rules.partitions.values() if (part := slurm_of(one)) is not None]
    if not partitions:
        return Check("attack", "warn", "Nothing was tried: no partition is one of a cluster.", "Write one into carrel.toml.")
    try:
        found = attack(
            home=home,
            user=trial.user,
            command=deputy_command(settings.slurm_deputy, trial.user),
            other=deputy_command(settings.slurm_deputy, getpass.getuser()),
            directory=str(Path(trial.directory).parent),
            partition=partitions[0],
            signer=key,
            patience=patience,
        )
    except CarrelError as error:
        return Check("attack", "warn", f"Not known: {error.message}", error.remedy)
    if found.through:
        message = f"A job of {found.user} got through: {'; '.join(found.through)}."
        return Check("attack", "fail", message, "Close that before anybody else may use the lab (docs/slurm.md).")
    return Check("attack", "ok", f"{found.tried} attempts of a job of {found.user} to be the lab, or somebody else, failed")
