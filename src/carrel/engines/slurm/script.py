"""The batch script of a job. Text in, text out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from carrel.engines.slurm.environ import MODULES
from carrel.engines.slurm.options import SlurmOptions


def batch_script(command: Sequence[str], options: SlurmOptions, *, output: str = "", array: str = "") -> str:
    """Return a script that loads the modules, sets the variables and becomes `command`.

    The command takes the place of the shell, so the signals that Slurm sends to the batch step reach it. Modules are loaded in a
    shell of their own, which leaves their variables in the file `MODULES` of the directory in which the script runs: they are for
    the task's command, and would bend the interpreter of the runner. A module that is missing ends the script before the command
    starts. The script says nothing that only its owner may know: Slurm keeps a copy.
    With `output` it writes there all that it has to say; sbatch sees to that itself. `array` is a directory that has one for
    each element of an array, by its index: the script goes there.
    """
    lines = ["#!/bin/bash", "set -e"]
    if output:
        lines.append(f"exec >> {shlex.quote(output)} 2>&1")
    if array:
        lines.append(f'cd {shlex.quote(array)}/"$SLURM_ARRAY_TASK_ID"')
    if options.modules:
        lines += [
            "(",
            # A batch shell is no login shell; sites define `module` in one of these.
            "for file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh; do",
            '    if [ -r "$file" ]; then . "$file" || true; fi',
            "done",
            'if ! type module > /dev/null 2>&1 && [ -r "$MODULESHOME/init/bash" ]; then . "$MODULESHOME/init/bash" || true; fi',
            *(f"module load {shlex.quote(module)}" for module in options.modules),
            f"env -0 > {MODULES}",
            ")",
        ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(options.variables.items())]
    return "\n".join([*lines, f"exec {shlex.join(command)}", ""])
