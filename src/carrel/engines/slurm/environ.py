"""What a command may see of the environment that Slurm, a site and its modules have made for a job. Pure.

The batch script begins with the few variables that sbatch was given (`carrel.engines.slurm.commands`). All else that is there was
put there for the job: by Slurm, by a prolog of the site, by the modules that the task has named. The command gets that, but for
three kinds of names:

* What programs of Slurm take as options (SBATCH_, SALLOC_, SRUN_): a nested sbatch would ask for what the lab's own call did.
* Those SLURM_ variables that say how the runner was started: its step, its rank, how its processors were bound. A nested srun
  takes them as its own options, and programs that look for a rank believe that srun has started them. What describes the *job*
  stays: a nested srun then makes a step of this job, with what the job has.
* What the lab decides by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Where a batch script leaves the environment with the modules loaded, as `env -0` writes it.
MODULES = "modules.environ"

#: Variables of Slurm's that describe the job (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).
_DESCRIBE = frozenset(
    {
        "SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_HOST", "SLURMD_NODENAME", "SLURM_RESTART_COUNT",
        "SLURM_JOBID", "SLURM_NNODES", "SLURM_NODELIST", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU",
        "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_NTASKS", "SLURM_NPROCS",
        "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE",
        "SLURM_GPUS_PER_TASK", "SLURM_SHARDS_ON_NODE", "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN",
    }
)  # fmt: skip
_DESCRIBE_ALL = re.compile(r"SLURM_(JOB|ARRAY)_[A-Z_]+")
_OPTIONS = re.compile(r"(SLURM|SLURMD|SBATCH|SALLOC|SRUN|PMI|PMIX)_.*")
#: What the shell sets for itself, and what the lab decides.
_OTHERS = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "HOSTNAME", "ENVIRONMENT"})


def command_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of a job in Slurm that its command sees, beside the lab's own short list."""
    return {name: value for name, value in environ.items() if _is_seen(name)}


def _is_seen(name: str) -> bool:
    if name in _DESCRIBE or _DESCRIBE_ALL.fullmatch(name):
        return True
    return not (_OPTIONS.fullmatch(name) or name in _OTHERS or name.startswith("CARREL_"))


def read_environ(data: bytes) -> dict[str, str]:
    """Return the variables in what `env -0` has written."""
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in data.split(b"\0"))
    return {name: value for name, equals, value in pairs if name and equals}
