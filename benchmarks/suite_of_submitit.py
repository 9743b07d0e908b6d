"""submitit's own tests, run against `carrel.submitit`: `python benchmarks/suite_of_submitit.py DIRECTORY [words of pytest]`.

DIRECTORY is that of the installed package `submitit`, which has its tests (`pip install --target SOMEWHERE submitit`).

Its test modules are put into a package of the same name whose other modules are ours, so each says `from . import local` and gets
ours: the import is replaced, and nothing else. Tests are left out that call an imitated sbatch, or look at what is inside of
submitit; those of what people call are run, also where they fail. Needs pytest, and an index of packages that has it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from support.lab_process import start_lab

#: File with tests -> tests that are left out, with the reason.
TESTS: dict[str, dict[str, str]] = {
    "local/test_local.py": {
        "test_killed": "kills a process by an attribute of the job",
        "test_make_subprocess": "calls what starts processes inside of submitit",
    },
    "local/test_debug.py": {},
    "auto/test_auto.py": {
        "test_slurm_executor": "replaces a method of the executor, and reads sbatch's options from an attribute",
        "test_deprecated_argument": "the same",
        "test_overriden_arguments": "reads sbatch's options from an attribute",
        "test_max_pickle_size_gb_in_auto": "reads an attribute of an executor inside of the executor",
        "test_executor_argument": "the same",
        "test_auto_batch_watcher": "needs an imitated sbatch",
    },
    "core/test_utils.py": {
        "test_temporary_save_path": "a helper inside of submitit",
        "test_temporary_save_path_error": "the same",
    },
    "test_helpers.py": {
        "test_monitor_jobs": "makes a job with a watcher that is inside of submitit",
    },
    "test_pickle.py": {},
}
#: Whole files that are left out, with the reason.
LEFT_OUT = {
    "slurm/test_slurm.py": "calls an imitated sbatch and sacct, and compares batch scripts",
    "core/test_core.py": "derives classes from what is inside of submitit, and runs its jobs by hand",
    "core/test_async.py": "the same",
    "core/test_plugins.py": "finds plugins of submitit",
    "test_documentation.py": "reads the repository of submitit",
}
#: Modules of the package, and what they are. An executor's jobs have pytest, which its tests import.
MODULES = {
    "__init__.py": """
from carrel.client.submitit import *
from submitit import helpers as helpers
from submitit.auto.auto import AutoExecutor
from submitit.local.debug import DebugExecutor, DebugJob
from submitit.local.local import LocalExecutor, LocalJob
""",
    "helpers.py": """
from carrel.submitit.helpers import *
""",
    "core/__init__.py": "",
    "core/core.py": """
from carrel.submitit.core.core import *
class InfoWatcher:
    def __init__(self, delay_s=60): pass
class PicklingExecutor: pass
R = __import__("typing").TypeVar("R")
""",
    "core/utils.py": "from carrel.submitit.core.utils import *\n",
    "core/job_environment.py": "from carrel.submitit.core.job_environment import *\n",
    "core/submission.py": "",
    "local/__init__.py": "",
    "local/debug.py": """
from carrel.client.submitit.debug import DebugJob
from carrel.submitit import DebugExecutor
""",
    "local/local.py": """
from carrel import submitit
from carrel.submitit import Job as LocalJob
class LocalExecutor(submitit.LocalExecutor):
    def __init__(self, folder, **more):
        super().__init__(folder, requirements=["pytest==PYTEST"], **more)
""",
    "auto/__init__.py": "",
    "auto/auto.py": """
from carrel import submitit
class AutoExecutor(submitit.AutoExecutor):
    def __init__(self, folder, cluster=None, **more):
        super().__init__(folder, cluster, requirements=["pytest==PYTEST"], **more)
""",
    "slurm/__init__.py": "",
    "slurm/test_slurm.py": "from contextlib import nullcontext as mocked_slurm\n",
}


def main() -> int:
    theirs, words = Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="carrel-suite-") as directory:
        ours = Path(directory) / "code" / "submitit"
        for name, text in MODULES.items():
            (ours / name).parent.mkdir(parents=True, exist_ok=True)
            (ours / name).write_text(text.replace("PYTEST", version("pytest")))
        for name in [*TESTS, "core/test_core.py", "conftest.py"]:
            shutil.copyfile(theirs / name, ours / name)
        lab = start_lab(Path(directory) / "home", "--cpus", "16", simulate_gpus=0)
        environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token, "PYTHONPATH": str(ours.parent)}
        left_out = [f"--deselect=submitit/{name}::{test}" for name, tests in TESTS.items() for test in tests]
        options = ["-c", os.devnull, "--rootdir", str(ours.parent), "-p", "no:cacheprovider", "-rA", "--tb=short", *left_out]
        files = [f"submitit/{name}" for name in TESTS]
        done = subprocess.run([sys.executable, "-m", "pytest", *options, *files, *words], cwd=ours.parent, env=environment)
        lab.end_jobs()
        lab.stop()
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
