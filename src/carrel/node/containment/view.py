"""An image beside the machine's files: a program of the lab's starts what runs in it.

The notebook server and the leader of a group are the lab's own programs, which no image has; what they start belongs into the
image. So the walls have the machine's files, and below one directory the whole root of the image, with all that the job was
given. Who starts something there changes its root to it (chroot(2)). For that alone the lab's program keeps one capability, in
its own user namespace; what it starts has none, and cannot look into it (ptrace(2)).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from carrel.node.containment import calls
from carrel.node.containment.image import lay_image
from carrel.node.containment.walls import Bind, View

#: Of the machine in every view, as it is behind the walls.
_SHARED = ("/dev", "/tmp")
#: Where the image is mounted meanwhile: nobody else's yet.
_MEANWHILE = "/dev/shm/image"


def take_trees(view: View) -> tuple[int, Sequence[tuple[Bind, int]]]:
    """Descriptors of the image and of what is shown in it. Taken before anything is covered."""
    return calls.clone_tree(view.root), [(bind, calls.clone_tree(bind.source)) for bind in view.binds]


def show_view(view: View, image: int, trees: Sequence[tuple[Bind, int]]) -> None:
    """Behind walls that are built: make the root of the image at its place. /proc is left to the first process."""
    calls.set_attributes(image, on=calls.ATTR_RDONLY | calls.ATTR_NOSUID | calls.ATTR_NODEV)
    root = Path(view.place)
    calls.mount("tmpfs", str(root), "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=0755,size=4m")
    source = Path(_MEANWHILE)
    source.mkdir()
    calls.place_tree(image, _MEANWHILE)
    lay_image(source, root, (bind.place for bind in view.binds))
    calls.unmount(_MEANWHILE)
    source.rmdir()
    os.close(image)
    for shared in _SHARED:
        _put(calls.clone_tree(shared), f"{root}{shared}")
    for bind, tree in sorted(trees, key=lambda one: one[0].place.count("/")):
        calls.set_attributes(tree, on=calls.ATTR_NOSUID | calls.ATTR_NODEV | (0 if bind.writable else calls.ATTR_RDONLY))
        place = Path(f"{root}{bind.place}")
        if not os.path.lexists(place):
            if Path(f"/proc/self/fd/{tree}").is_dir():
                place.mkdir(parents=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
        _put(tree, str(place))
    calls.set_attributes(str(root), on=calls.ATTR_RDONLY, recursive=False)


def show_processes(view: View) -> None:
    """In the first process, whose /proc is there: show it in the image, too."""
    _put(calls.clone_tree("/proc"), f"{view.place}/proc")


def enter(place: str) -> None:
    """Have this process see the image at `place`, and never gain any right again. Raises `OSError`."""
    os.chroot(place)
    os.chdir("/")
    calls.drop_privileges()


def found_in(place: str, name: str, variables: Mapping[str, str]) -> str | None:
    """Return the path of the program `name` in the image at `place`, by the PATH of `variables`."""
    for directory in variables.get("PATH", "").split(os.pathsep):
        # What a link there leads to is for the image to say.
        if directory.startswith("/") and os.path.lexists(f"{place}{directory}/{name}"):
            return f"{directory}/{name}"
    return None


def _put(tree: int, place: str) -> None:
    calls.place_tree(tree, place)
    os.close(tree)
