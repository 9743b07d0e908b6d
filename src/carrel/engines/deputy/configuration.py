"""What an administrator lets deputies do: a file that the lab cannot change."""

from __future__ import annotations

import grp
import os
import pwd
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from carrel.core.domain.errors import CarrelError, Denied, Invalid
from carrel.core.spool.strict import open_trusted

#: Where deputies keep their files when nothing else is said.
DIRECTORY = "~/.carrel/jobs"
_PATH = "/usr/local/bin:/usr/bin:/bin"


class Forbidden(CarrelError):
    """This user has no deputy, or this file may not say so."""

    code = "forbidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeputyConfiguration:
    """The file's keys."""

    #: Only members of this Unix group have deputies; "": everybody but root whom the rule of sudo names.
    group: str = ""
    #: Where files of a user lie, which all nodes see: "~" and "{user}" are theirs.
    directory: str = DIRECTORY
    #: The keys of the one lab that deputies serve (hexadecimal), two during a change; (): any lab that sudo lets start them.
    lab_keys: tuple[str, ...] = ()
    #: Variables for Slurm's commands, such as PATH and SLURM_CONF.
    environment: Mapping[str, str] = field(default_factory=dict)

    def environ_of(self, account: pwd.struct_passwd) -> dict[str, str]:
        """Return the variables of a deputy: nothing of the lab's."""
        user = {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
        return {"PATH": _PATH, "LANG": "C.UTF-8", **self.environment, **user}

    def directory_of(self, account: pwd.struct_passwd) -> Path:
        """Return where the files of a user lie."""
        text = self.directory.replace("{user}", account.pw_name)
        return Path(account.pw_dir + text[1:] if text == "~" or text.startswith("~/") else text)

    def check_user(self, account: pwd.struct_passwd) -> None:
        """Raise `Forbidden` unless the user may have a deputy."""
        if account.pw_uid == 0:
            raise Forbidden("root has no deputy.", remedy="Map the user of the lab to an ordinary user.")
        if not self.group:
            return
        try:
            wanted = grp.getgrnam(self.group).gr_gid
        except KeyError as error:
            raise Forbidden(f'There is no group "{self.group}".', remedy="Mend the deputies' configuration.") from error
        if wanted not in os.getgrouplist(account.pw_name, account.pw_gid):
            raise Forbidden(
                f'{account.pw_name} is not in the group "{self.group}".', remedy="An administrator of the cluster adds them."
            )


def read_configuration(path: Path) -> DeputyConfiguration:
    """Read the file. Raises `Forbidden` where others than root could have written it, or put it there, and `Invalid` for what is
    wrong in it."""
    try:
        with os.fdopen(open_trusted(path, owners={0}), "rb") as file:
            table = tomllib.load(file)
    except Denied as error:
        raise Forbidden(
            f"{path} could have been written by others than root: {error.message}",
            remedy=f"chown root {path}; chmod 644 {path}; the directories above it have to be root's, too.",
        ) from error
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}.", remedy="docs/slurm.md says what is in it.") from error
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{path}: {error}.") from error
    known = ("group", "directory", "lab_key", "environment")
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise Invalid(f'{path}: "{unknown[0]}" is not understood.', remedy=f"There are {', '.join(known)}.")
    environment = table.get("environment", {})
    texts = [*(table.get(key, "") for key in known[:2]), *environment.values()] if isinstance(environment, dict) else [0]
    if not all(isinstance(text, str) for text in texts):
        raise Invalid(f"{path}: a value is not a text.", remedy='Write it like group = "lab".')
    directory = table.get("directory", DIRECTORY)
    if not directory.startswith(("/", "~/")):
        raise Invalid(f'{path}: directory is "{directory}".', remedy='Write it like "~/.carrel" or "/scratch/{user}/carrel".')
    return DeputyConfiguration(
        group=table.get("group", ""),
        directory=directory,
        lab_keys=_keys(path, table.get("lab_key", [])),
        environment=environment,
    )


def _keys(path: Path, found: object) -> tuple[str, ...]:
    keys = [found] if isinstance(found, str) else found
    if not isinstance(keys, list) or not all(isinstance(key, str) and re.fullmatch(r"[0-9a-f]{64}", key) for key in keys):
        said = f'"{found}"' if isinstance(found, str) else f"{found}"
        raise Invalid(f"{path}: lab_key is {said}.", remedy="Copy what `carrel signing-key show` says: 64 digits and letters.")
    return tuple(keys)
