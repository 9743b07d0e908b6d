"""`python -m carrel.notebooks.jupyter`: the command of a session."""

from __future__ import annotations

import os
import sys

from carrel.core.domain.errors import CarrelError
from carrel.notebooks.jupyter.context import SessionContext
from carrel.notebooks.jupyter.launch import launch

try:
    launch(SessionContext.read(os.environ))
except CarrelError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
