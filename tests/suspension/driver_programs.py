"""Short programs on the fake driver, written with the real bindings."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from carrel.testing.fake_driver import FakeDriver
from carrel.testing.waiting import PATIENCE

#: Begins every program below; `call` returns the value, or the name of the error.
PRELUDE = """
import json, os, sys
from cuda.bindings import driver as d
def call(name, *arguments):
    result, *values = getattr(d, name)(*arguments)
    return result.name if int(result) else values[0] if values else None
def context(ordinal=0):
    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", ordinal)))
def say(*values): print(json.dumps(values))
"""


def run(driver: FakeDriver, program: str, **variables: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        env=driver.environment() | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))
