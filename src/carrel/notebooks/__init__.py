"""Notebooks: the kernel hook, sessions of JupyterLab and the way to them, from notebook to task."""

#: Bytes of a message of a websocket at most, in both directions. The lab holds a whole message in memory.
LARGEST_MESSAGE = 256 * 1024**2
