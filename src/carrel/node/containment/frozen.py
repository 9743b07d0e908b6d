"""A directory as it is now: what comes under a name in it later is not there.

A cover over a file alone does not stay: the kernel takes it away, in all mount namespaces, when the file is removed or another is
renamed to its place (`detach_mounts`, since Linux 3.18); then the name leads to what is new.
"""

from __future__ import annotations

import os
import stat
from itertools import islice

from carrel.node.containment import calls

#: Entries of a directory; each costs some 25 microseconds at each start.
MOST_ENTRIES = 512
#: Where it is put together; the command's own /tmp is not looked into meanwhile.
_MEANWHILE = "/tmp"


def is_small(directory: str) -> bool:
    """Whether `freeze` takes a directory."""
    try:
        with os.scandir(directory) as entries:
            return next(islice(entries, MOST_ENTRIES, None), None) is None
    except OSError:
        return False


def freeze(directory: str) -> bool:
    """Put a file system in memory over a directory: with its entries, but for files that not everybody may read.

    Returns False, and does nothing, where it has too many or cannot be listed. What is put there can still be written.
    """
    if not is_small(directory):
        return False
    calls.mount("tmpfs", _MEANWHILE, "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=0755,size=1m")
    for entry in os.scandir(directory):
        place = f"{_MEANWHILE}/{entry.name}"
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink(entry.path), place)  # noqa: PTH115, PTH211 - it is text here
                continue
            if stat.S_ISREG(mode) and not mode & stat.S_IROTH:
                continue  # also what a program is about to rename to a file that is covered
            tree = calls.clone_tree(entry.path)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(mode):
            os.mkdir(place)  # noqa: PTH102
        else:
            os.mknod(place)
        calls.place_tree(tree, place)
        os.close(tree)
    root = os.open(_MEANWHILE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    calls.place_tree(root, directory)
    os.close(root)
    return True
