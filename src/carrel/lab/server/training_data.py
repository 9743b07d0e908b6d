"""Training data of challenges, which the jobs of their teams see beside all others do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.core.challenges.places import place_of
from carrel.core.control.keeper import RecordStore
from carrel.core.domain.challenge import Challenge, Team
from carrel.core.domain.launch import LaunchWalls


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Says what jobs of an owner do not see of the machine, as `walls` does, with the data that the owner's teams are shown."""

    walls: Callable[[str], LaunchWalls | None]
    challenges: RecordStore[Challenge]
    teams: RecordStore[Team]
    #: Where challenges lie, a directory for each version.
    root: Path

    def __call__(self, owner: str) -> LaunchWalls | None:
        """None: nothing keeps jobs apart."""
        walls = self.walls(owner)
        if walls is None:
            return None
        mine = {team.challenge for team in self.teams.all() if owner in team.members}
        data = tuple(
            str(place_of(self.root, one.name, one.version) / one.train)
            for one in self.challenges.all()
            if one.name in mine and one.train
        )
        return replace(walls, data=data)
