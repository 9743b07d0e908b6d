"""What a task may ask of Slurm beyond resources, declared once (sbatch(1))."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.submission.kinds import EVENTS, WORD, WORDS
from carrel.core.submission.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """The options of the engine `slurm`; what they become is `carrel.core.domain.slurm.SlurmRequest`."""

    constraint: str | None = option(kind=WORD, in_config="constraint", help="Features that its nodes must have.")
    exclusive: str | None = option(
        kind=WORD, in_config="exclusive", help='Whole nodes ("exclusive"), or those of one user ("user") or label ("mcs").'
    )
    reservation: str | None = option(kind=WORD, in_config="reservation", help="A reservation of the cluster.")
    mail: str | None = option(kind=WORD, in_config="mail_user", help="Address that Slurm writes to.")
    mail_events: tuple[str, ...] = option((), kind=EVENTS, in_config="mail_type", help="Upon which events: END, FAIL and others.")
    modules: tuple[str, ...] = option(
        (), kind=WORDS, flags=("--module",), in_config="modules", help="An environment module of the cluster; may be repeated."
    )
    options: tuple[str, ...] = option((), kind=WORDS, help="Further options, as sbatch takes them: --nice=100.")
