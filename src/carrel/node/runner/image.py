"""What of the machine a command sees in an image: how names are found, and the driver of the GPUs that it was given.

The driver's libraries have to fit the machine's kernel module, so no image has them. As apptainer's --nv and NVIDIA's container
toolkit do it, they are mounted beside the image's own, and LD_LIBRARY_PATH names them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from carrel.core.domain.launch import Launch
from carrel.core.spool import AttemptDirectory
from carrel.node.containment.walls import Bind
from carrel.node.environments.images import MACHINES, image_variables

#: Where the driver's libraries and programs are in an image.
DRIVER = "/opt/carrel-driver"
#: What a session's kernels import of ours, by its place in the package: the standard library is all that it needs.
HOOK = Path(__file__).parents[2] / "notebooks/hook/front"
#: In an attempt's directory: the variables of a session's kernels in their image.
INSIDE = "image.json"
#: Of the machine, where the image's own would be wrong.
_NAMES = ("/etc/resolv.conf", "/etc/hosts", "/etc/localtime")
#: What belongs to the driver, as ldconfig(8) lists it.
_LIBRARY = re.compile(r"^\s*(lib(?:cuda|nvidia-|nvcuvid|nvoptix|cudadebugger)\S*\.so\S*) \(([^)]*)\) => (/\S+)$", re.MULTILINE)
_PROGRAMS = ("nvidia-smi",)


def check_node() -> None:
    """Raise `EnvironmentFailed` where no image runs on this node of a cluster: an image is a root of walls."""
    from carrel.node.containment.trial import try_walls
    from carrel.node.environments.errors import EnvironmentFailed
    from carrel.node.environments.image_tools import machine_name

    trial = try_walls(network=False)
    if trial.why_not:
        raise EnvironmentFailed(f"No image runs on {machine_name()}: {trial.why_not}", remedy=trial.remedy)


def shown_in_images(launch: Launch) -> Iterator[Bind]:
    """Yield what is mounted in the image, at the places that programs know."""
    for place in _NAMES:
        if os.path.exists(place):  # noqa: PTH110
            yield Bind(os.path.realpath(place), place)
    if uses_gpus(launch):
        yield from driver_of_machine()


def uses_gpus(launch: Launch) -> bool:
    """Whether what the launch starts may see a GPU: its own, or one that its cells borrow."""
    return bool(launch.devices) or (launch.task.session is not None and bool(launch.paths.broker))


def variables_inside(root: Path, base: Mapping[str, str], launch: Launch) -> dict[str, str]:
    """Return the variables of what runs in the image at `root`: `base`, changed as the image and the GPUs want it."""
    variables = image_variables(root, base)
    return with_driver(variables) if uses_gpus(launch) else variables


def image_place(directory: AttemptDirectory) -> Path:
    """Where the root of the image is for a program of the lab's that starts others in it (`carrel.node.containment.view`)."""
    return Path(os.path.realpath(directory.path)) / "image"


def write_inside(directory: AttemptDirectory, root: Path, base: Mapping[str, str], launch: Launch) -> None:
    """Write down for a session what its kernels find in their environment, and what of the server's they do not."""
    said = {"variables": variables_inside(root, {}, launch), "without": [name for name in base if name in MACHINES]}
    (directory.path / INSIDE).write_text(json.dumps(said))


def driver_of_machine() -> Iterator[Bind]:
    """Yield what this machine has of the driver."""
    yield from driver_files(subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout)


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
