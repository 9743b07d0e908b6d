"""What tests run as other Unix users works wherever the checkout is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import carrel
from support.unix_users import common_ground, run_as
from tiers import TESTS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")

MAKE = """
import sys
from pathlib import Path
from support.unix_users import python_for_all
print(python_for_all(Path(sys.argv[1])))
"""


@pytest.mark.gate
def test_a_checkout_that_others_cannot_enter_is_no_obstacle() -> None:
    with common_ground() as ground:
        private = ground / "home" / "src"
        private.mkdir(parents=True)
        private.parent.chmod(0o700)
        shutil.copytree(Path(carrel.__file__).parent, private / "carrel", ignore=shutil.ignore_patterns("__pycache__"))
        (private / "carrel" / "__init__.py").chmod(0o600)
        made = subprocess.run(
            [sys.executable, "-c", MAKE, ground / "python"],
            env={**os.environ, "PYTHONPATH": f"{private}:{TESTS}"}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        look = "import carrel.lab.server.up, sys; print(carrel.__file__, *sys.path)"
        seen = subprocess.run(
            [*run_as("nobody"), made.stdout.strip(), "-P", "-c", look], cwd="/", capture_output=True, text=True, check=True
        ).stdout
        assert seen.startswith(str(ground / "python")), "what others run is where they can read it"
        assert str(private) not in seen
