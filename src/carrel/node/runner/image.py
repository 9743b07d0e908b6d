"""What of the machine a command sees in an image: how names are found, and the driver of the GPUs that it was given.

The driver's libraries have to fit the machine's kernel module, so no image has them. As apptainer's --nv and NVIDIA's container
toolkit do it, they are mounted beside the image's own, and LD_LIBRARY_PATH names them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping

from carrel.core.domain.launch import Launch
from carrel.node.containment.walls import Bind

#: Where the driver's libraries and programs are in an image.
DRIVER = "/opt/carrel-driver"
#: Of the machine, where the image's own would be wrong.
_NAMES = ("/etc/resolv.conf", "/etc/hosts", "/etc/localtime")
#: What belongs to the driver, as ldconfig(8) lists it.
_LIBRARY = re.compile(r"^\s*(lib(?:cuda|nvidia-|nvcuvid|nvoptix|cudadebugger)\S*\.so\S*) \(([^)]*)\) => (/\S+)$", re.MULTILINE)
_PROGRAMS = ("nvidia-smi",)


def shown_in_images(launch: Launch) -> Iterator[Bind]:
    """Yield what is mounted in the image, at the places that programs know."""
    for place in _NAMES:
        if os.path.exists(place):  # noqa: PTH110
            yield Bind(os.path.realpath(place), place)
    if launch.devices:
        said = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
        yield from driver_files(said)


def driver_files(listing: str) -> Iterator[Bind]:
    """Yield the driver's libraries in what `ldconfig -p` says, each by its name, and its programs."""
    for name, kind, path in _LIBRARY.findall(listing):
        if "64" in kind:
            yield Bind(os.path.realpath(path), f"{DRIVER}/lib/{name}")
    for name in _PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            yield Bind(os.path.realpath(found), f"{DRIVER}/bin/{name}")


def with_driver(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` with the driver's libraries and programs found after the image's own directories."""
    libraries = [part for part in (variables.get("LD_LIBRARY_PATH"), f"{DRIVER}/lib") if part]
    return {**variables, "LD_LIBRARY_PATH": ":".join(libraries), "PATH": f"{variables['PATH']}:{DRIVER}/bin"}
