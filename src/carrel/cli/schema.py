"""`carrel schema`: what an editor needs to complete files that people write, and to mark what is wrong in them."""

from __future__ import annotations

from typing import Annotated

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, argument
from carrel.cli.screen import print_json
from carrel.core.domain.errors import Invalid


def schema_command(
    file: Annotated[str, argument("FILE", "MLproject, carrel.toml, costs.toml or challenge.yaml.")],
    as_json: AsJson = False,  # noqa: ARG001 - it is JSON in any case
) -> int:
    """Print the JSON schema of a file that people write.

    Editors that know YAML or TOML take it: they complete keys, and mark what is wrong.
    """
    if file.lower() == "mlproject":
        from carrel.core.tasks.schema import task_schema

        print_json(task_schema())
    elif file == "carrel.toml":
        from carrel.lab.server.schema import settings_schema

        print_json(settings_schema())
    elif file == "costs.toml":
        from carrel.core.worth.schema import costs_schema

        print_json(costs_schema())
    elif file == "challenge.yaml":
        from carrel.core.challenges.schema import challenge_schema

        print_json(challenge_schema())
    else:
        raise Invalid(f'There is no schema of "{file}".', remedy="Say MLproject, carrel.toml, costs.toml or challenge.yaml.")
    return OK
