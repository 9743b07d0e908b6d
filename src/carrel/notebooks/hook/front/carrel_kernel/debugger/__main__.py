"""debugpy's adapter, for own connections alone. It is started by the name of this directory, in the kernel's environment."""

import runpy
import sys

from own import keep_apart

del sys.path[0]
keep_apart()

from debugpy.common import sockets  # noqa: E402

create, kept = sockets.create_client, []


def create_client(*arguments, **options):
    """Keep it: the adapter tells the kernel its ports and closes at once, and the kernel looks who told it after that."""
    client = create(*arguments, **options)
    kept.append(client.dup())
    return client


sockets.create_client = create_client
runpy.run_module("debugpy.adapter", run_name="__main__", alter_sys=True)
