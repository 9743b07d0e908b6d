"""Images: a container's file system as the environment of a task.

Other people's programs fetch and unpack it (`image_tools`); nothing of the image runs then. What runs later runs behind Carrel's
own walls, with the image's files in the place of the machine's.
See docs/decisions/0055-images-are-roots-of-walls.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from carrel.core.spool.trees import room_of
from carrel.node.environments.building import BuildContext
from carrel.node.environments.errors import EnvironmentFailed
from carrel.node.environments.image_tools import ImageTool, find_image_tool
from carrel.node.environments.records import IMAGE_ABOUT, write_text

#: The files of an unpacked image, beside what it says of itself.
ROOT = "root"
#: What an archive in a task's code is called: "oci-archive:train.tar".
_ARCHIVES = ("oci-archive", "docker-archive")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What says where the machine's own programs and files are; an image has its own.
MACHINES = ("PATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def pin_image(reference: str, build_context: BuildContext) -> str:
    """Return the lock of an image: its reference with the digest of what that means now, on one line."""
    tool = _tool(build_context)
    build_context.context.report(f"looking up the image {reference}")
    source, base = _source(reference, build_context)
    return f"{reference.partition('@')[0]}@{tool.digest(reference, source, base, build_context)}\n"


def build_image(lock: str, target: Path, build_context: BuildContext, guard: int) -> Path:
    """Fetch and unpack the image of a lock in the directory `target`; return where its files are."""
    reference, _, digest = lock.strip().partition("@")
    tool = _tool(build_context)
    source, base = _source(reference, build_context, digest)
    build_context.context.report(f"fetching the image {reference}")
    unpacked = tool.unpack(reference, source, base, build_context, guard)
    target.mkdir(mode=0o700)
    for place in (unpacked.root.parent, unpacked.root):
        if not stat.S_ISDIR(place.lstat().st_mode):
            raise EnvironmentFailed(f"Unpacking the image {reference} left no directory.")
    unpacked.root.rename(target / ROOT)
    about = {"image": reference, "digest": digest, "variables": _readable(unpacked.variables), "size": room_of(target)}
    write_text(target / IMAGE_ABOUT, json.dumps(about, sort_keys=True))
    return target / ROOT


def image_variables(root: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command in the image that is unpacked at `root`: `base`, changed as the image says."""
    told: dict[str, str] = json.loads((root.parent / IMAGE_ABOUT).read_bytes())["variables"]
    kept = {name: value for name, value in base.items() if name not in MACHINES}
    return {**kept, "PATH": _PATH, **told}


def tidy_image(build_context: BuildContext) -> None:
    """Remove what pinning or building an image has left elsewhere; there may have been none."""
    base = build_context.scratch / "image"
    if base.exists():
        _tool(build_context).tidy(base, build_context)


def _tool(build_context: BuildContext) -> ImageTool:
    return find_image_tool(build_context.context.variables, kept_apart=build_context.kept_apart)


def _source(reference: str, build_context: BuildContext, digest: str = "") -> tuple[str, Path]:
    """Return what the programs call the image, and the directory in which they work."""
    base = build_context.scratch / "image"
    base.mkdir(exist_ok=True)
    kind, _, place = reference.partition(":")
    if kind not in _ARCHIVES:
        name = reference if not digest else f"{_without_tag(reference)}@{digest}"
        return f"docker://{name}", base
    archive = base / "archive.tar"
    code = os.path.realpath(build_context.code)
    path = os.path.realpath(os.path.join(code, place))  # noqa: PTH118
    if os.path.commonpath([code, path]) != code or not os.path.isfile(path):  # noqa: PTH113
        raise EnvironmentFailed(f"The image {reference} is not a file of the task's code.", remedy="Name one relative to it.")
    if not archive.exists():
        shutil.copyfile(path, archive)
    return f"{kind}:{archive}", base


def _without_tag(reference: str) -> str:
    head, slash, last = reference.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def _readable(said: Sequence[str]) -> dict[str, str]:
    pairs = (line.partition("=") for line in said)
    return {name: value for name, _, value in pairs if _VARIABLE.fullmatch(name) and not name.startswith("CARREL_")}
