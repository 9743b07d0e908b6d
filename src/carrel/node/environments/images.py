"""Images: a container's file system as the environment of a task.

skopeo fetches an image and umoci unpacks it; neither needs a daemon, storage of its own or any right, and nothing of the image
runs. What runs later runs behind Carrel's own walls, with the image's files in the place of the machine's.
See docs/decisions/0055-images-are-roots-of-walls.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.node.environments.building import BuildContext
from carrel.node.environments.errors import EnvironmentFailed
from carrel.node.environments.records import write_text

#: The files of an unpacked image, beside what it says of itself.
ROOT, ABOUT = "root", "image.json"
#: Never needed beyond Debian's or Fedora's own packages.
_TOOLS = ("skopeo", "umoci")
_POLICY = Path("/etc/containers/policy.json")
#: What an archive in a task's code is called: "oci-archive:train.tar".
_ARCHIVES = ("oci-archive", "docker-archive")
#: Where an image may come from without TLS, as other programs have it: this machine.
_HERE = re.compile(r"(?:localhost|127\.[0-9.]+|\[::1\])(?::[0-9]+)?/")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What says where the machine's own programs and files are; an image has its own.
_MACHINES = ("PATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ImageTools:
    """The programs that fetch and unpack."""

    skopeo: str
    umoci: str


def find_image_tools(environ: Mapping[str, str]) -> ImageTools:
    """Return the programs; raise `EnvironmentFailed` that names what to install."""
    found = [shutil.which(name, path=environ.get("PATH") or os.defpath) for name in _TOOLS]
    missing = [name for name, path in zip(_TOOLS, found, strict=True) if path is None]
    if missing:
        names = " and ".join(missing)
        raise EnvironmentFailed(
            f"Images need {names}, which {'are' if len(missing) > 1 else 'is'} not on the PATH of this lab.",
            remedy=f"Have an administrator install {names} (Debian, Ubuntu: apt-get install {' '.join(missing)}).",
        )
    return ImageTools(*map(str, found))


def pin_image(reference: str, build_context: BuildContext) -> str:
    """Return the lock of an image: its reference with the digest of what that means now, on one line."""
    build_context.context.report(f"looking up the image {reference}")
    source, base = _source(reference, build_context)
    tools = find_image_tools(build_context.context.variables)
    said = build_context.context.run(
        [tools.skopeo, *_global(base), "inspect", "--raw", *_tls("--tls-verify", reference), source],
        cwd=base,
        doing=f"Looking up the image {reference}",
        writable={base: base},
    )
    return f"{reference.partition('@')[0]}@sha256:{hashlib.sha256(said.encode()).hexdigest()}\n"


def build_image(lock: str, target: Path, build_context: BuildContext, guard: int) -> Path:
    """Fetch and unpack the image of a lock in the directory `target`; return where its files are."""
    pinned = lock.strip()
    reference, _, digest = pinned.partition("@")
    tools = find_image_tools(build_context.context.variables)
    source, base = _source(reference, build_context, digest)
    build_context.context.report(f"fetching the image {reference}")
    build_context.context.run(
        [tools.skopeo, *_global(base), "copy", *_tls("--src-tls-verify", reference), source, f"oci:{base}/layout:image"],
        cwd=base,
        doing=f"Fetching the image {reference}",
        guard=guard,
        writable={base: base},
    )
    build_context.context.report(f"unpacking the image {reference}")
    build_context.context.run(
        [tools.umoci, "unpack", "--rootless", "--image", f"{base}/layout:image", f"{base}/bundle"],
        cwd=base,
        doing=f"Unpacking the image {reference}",
        guard=guard,
        writable={base: base},
    )
    target.mkdir(mode=0o700)
    for place in (base / "bundle", base / "bundle/rootfs"):
        if not stat.S_ISDIR(place.lstat().st_mode):
            raise EnvironmentFailed(f"Unpacking the image {reference} left no directory.")
    (base / "bundle/rootfs").rename(target / ROOT)
    about = {"image": reference, "digest": digest, "variables": _variables(base / "layout")}
    write_text(target / ABOUT, json.dumps(about, sort_keys=True))
    return target / ROOT


def image_variables(root: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command in the image that is unpacked at `root`: `base`, changed as the image says."""
    told: dict[str, str] = json.loads((root.parent / ABOUT).read_bytes())["variables"]
    kept = {name: value for name, value in base.items() if name not in _MACHINES}
    return {**kept, "PATH": _PATH, **told}


def _global(base: Path) -> list[str]:
    (base / "tmp").mkdir(exist_ok=True)
    # Which signatures an image needs is the machine's to say; where it says nothing, none.
    return [f"--tmpdir={base}/tmp", *([] if _POLICY.exists() else ["--insecure-policy"])]


def _tls(option: str, reference: str) -> list[str]:
    return [f"{option}=false"] if _HERE.match(reference) else []


def _source(reference: str, build_context: BuildContext, digest: str = "") -> tuple[str, Path]:
    """Return what skopeo calls the image, and the directory in which it works."""
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


def _variables(layout: Path) -> dict[str, str]:
    """Return the variables that the image of an OCI layout sets (image specification, config.md, Env)."""
    try:
        index = json.loads((layout / "index.json").read_bytes())
        manifest = _blob(layout, index["manifests"][0]["digest"])
        said = _blob(layout, manifest["config"]["digest"]).get("config", {}).get("Env") or []
        pairs = [str(line).partition("=") for line in said]
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise EnvironmentFailed(f"What the image says of itself cannot be read: {error}.") from error
    return {name: value for name, _, value in pairs if _VARIABLE.fullmatch(name) and not name.startswith("CARREL_")}


def _blob(layout: Path, digest: str) -> Any:
    kind, _, name = digest.partition(":")
    if not re.fullmatch(r"[a-z0-9]+", kind) or not re.fullmatch(r"[0-9a-f]+", name):
        raise ValueError(f"{digest[:80]} is no digest")
    return json.loads((layout / "blobs" / kind / name).read_bytes())
