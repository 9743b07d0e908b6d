"""`python -m carrel.node.broker`."""

import os
import sys

from carrel.node.broker.main import main

code = main()
sys.stdout.flush()
sys.stderr.flush()
# Threads that wait for a driver that hangs must not keep this process: the next broker waits for its lock.
os._exit(code)
