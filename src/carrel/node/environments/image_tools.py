"""The programs that fetch images and unpack them: skopeo with umoci, or podman.

None of them needs a daemon or any right, and nothing of an image runs here. podman is asked for less: it keeps a copy of each
layer while it works. What a machine has is found out on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from carrel.core.domain.errors import CarrelError
from carrel.core.spool.foreign import parse_json, read_regular
from carrel.core.spool.trees import remove_tree
from carrel.node.environments.building import BuildContext
from carrel.node.environments.errors import EnvironmentFailed

_POLICY = Path("/etc/containers/policy.json")
#: Where an image may come from without TLS, as other programs have it: this machine.
_HERE = re.compile(r"(?:localhost|127\.[0-9.]+|\[::1\])(?::[0-9]+)?/")
#: Seconds for removing what podman stored.
_TIDY = 300.0
#: Bytes of what an image says of itself.
_LARGEST = 64 * 1024**2
_LONGEST_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """An image whose files are there."""

    root: Path
    #: What it sets, as "NAME=value".
    variables: Sequence[str]


class ImageTool(Protocol):
    """What brings images. `source` is where one is, in the words of all these programs; `base` is a directory to work in.

    Both raise `EnvironmentFailed` with the program's words, and leave nothing running.
    """

    @property
    def programs(self) -> tuple[str, ...]:
        """The paths of what is used."""

    def digest(self, reference: str, source: str, base: Path, build_context: BuildContext) -> str:
        """Return the digest of what the image's name means now."""

    def unpack(self, reference: str, source: str, base: Path, build_context: BuildContext, guard: int) -> Unpacked:
        """Fetch the image, and unpack it in `base`."""

    def tidy(self, base: Path, build_context: BuildContext) -> None:
        """Remove what the other two have left beyond what removing `base` takes along. Raises nothing."""


def find_image_tool(environ: Mapping[str, str], *, kept_apart: bool = False) -> ImageTool:
    """Return what this machine has; raise `EnvironmentFailed` that names it and what to install.

    Beside the machine's own programs those beside this Python are used, which a site without an administrator can put there.
    podman makes namespaces, which nobody can behind walls: it is not used where builds are `kept_apart`.
    """
    own = os.path.dirname(sys.executable)  # noqa: PTH120 - links stay: a virtual environment's Python is one
    path = os.pathsep.join([environ.get("PATH") or os.defpath, own])
    found = {name: shutil.which(name, path=path) for name in ("skopeo", "umoci", "podman", "tar")}
    skopeo, umoci, podman, tar = found.values()
    if skopeo and umoci:
        return SkopeoUmoci(skopeo, umoci)
    if podman and tar and not kept_apart:
        return Podman(podman, tar)
    missing = [name for name in ("skopeo", "umoci") if not found[name]]
    needed, lacks = "skopeo and umoci", missing
    if not kept_apart:
        needed, lacks = f"{needed}, or podman", [*missing, "podman"]
    raise EnvironmentFailed(
        f"Images need {needed}: {machine_name()} has no {' and no '.join(lacks)}.",
        remedy=f"Have an administrator install {' and '.join(missing)} there "
        f"(Debian, Ubuntu: apt-get install {' '.join(missing)}), "
        f"or put {'them' if len(missing) > 1 else 'it'} into {own}.",
    )


def machine_name() -> str:
    """What this machine is called: on a cluster as Slurm calls it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


@dataclass(frozen=True, slots=True)
class SkopeoUmoci:
    """skopeo(1) fetches, and umoci(1) unpacks."""

    skopeo: str
    umoci: str

    @property
    def programs(self) -> tuple[str, ...]:
        """Both."""
        return (self.skopeo, self.umoci)

    def digest(self, reference: str, source: str, base: Path, build_context: BuildContext) -> str:
        """Ask where the image is; nothing of it is fetched."""
        said = build_context.context.run(
            [self.skopeo, *_global(base), "inspect", "--raw", *_tls("--tls-verify", reference), source],
            cwd=base,
            doing=f"Looking up the image {reference}",
            writable={base: base},
        )
        return f"sha256:{hashlib.sha256(said.encode()).hexdigest()}"

    def unpack(self, reference: str, source: str, base: Path, build_context: BuildContext, guard: int) -> Unpacked:
        """Copy the layers, then lay them over each other."""
        build_context.context.run(
            [self.skopeo, *_global(base), "copy", *_tls("--src-tls-verify", reference), source, f"oci:{base}/layout:image"],
            cwd=base,
            doing=f"Fetching the image {reference}",
            guard=guard,
            writable={base: base},
        )
        build_context.context.report(f"unpacking the image {reference}")
        build_context.context.run(
            [self.umoci, "unpack", "--rootless", "--image", f"{base}/layout:image", f"{base}/bundle"],
            cwd=base,
            doing=f"Unpacking the image {reference}",
            guard=guard,
            writable={base: base},
        )
        return Unpacked(root=base / "bundle/rootfs", variables=_variables(base / "layout"))

    def tidy(self, base: Path, build_context: BuildContext) -> None:
        """There is nothing else."""


@dataclass(frozen=True, slots=True)
class Podman:
    """podman(1), with storage of its own for each image, so that it asks nothing of the owner's home or of the file system."""

    podman: str
    tar: str

    @property
    def programs(self) -> tuple[str, ...]:
        """podman alone: everybody has tar(1)."""
        return (self.podman,)

    def digest(self, reference: str, source: str, base: Path, build_context: BuildContext) -> str:
        """Fetch the image, which is not fetched again by `unpack` in the same directory: podman asks for no digest alone."""
        return str(self._fetched(reference, source, base, build_context)[1]["Digest"])

    def unpack(self, reference: str, source: str, base: Path, build_context: BuildContext, guard: int) -> Unpacked:
        """Fetch, lay the layers over each other, and take the files: all of them as this user's."""
        number, found = self._fetched(reference, source, base, build_context, guard)
        build_context.context.report(f"unpacking the image {reference}")
        doing = f"Unpacking the image {reference}"
        self._run(["create", "--name=carrel", "--entrypoint=/", number], doing, base, build_context, guard)
        self._run(["export", f"--output={base}/files.tar", "carrel"], doing, base, build_context, guard)
        root = base / "bundle/rootfs"
        root.mkdir(parents=True)
        build_context.context.run(
            [self.tar, "-x", "-p", "-f", f"{base}/files.tar", "-C", str(root), "--no-same-owner", "--exclude=dev/*"],
            cwd=base,
            doing=doing,
            guard=guard,
            writable={base: base},
        )
        return Unpacked(root=root, variables=[str(line) for line in found["Config"].get("Env") or []])

    def _fetched(
        self, reference: str, source: str, base: Path, build_context: BuildContext, guard: int | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Return podman's number of the image, and what it says of it."""
        doing = f"Fetching the image {reference}"
        words = ["pull", *_tls("--tls-verify", reference), source]
        said = self._run(words, doing, base, build_context, guard).split()
        number = said[-1] if said else ""
        if not _LONGEST_ID.fullmatch(number):
            raise EnvironmentFailed(f"{doing} failed: podman said {number[:100]!r} where its number is expected.")
        told = json.loads(self._run(["image", "inspect", number], doing, base, build_context, guard))
        return number, dict(told[0])

    def _run(self, words: Sequence[str], doing: str, base: Path, build_context: BuildContext, guard: int | None) -> str:
        return build_context.context.run(
            [*self._storage(base), *words], cwd=base, doing=doing, guard=guard, writable={base: base}, extra=self._extra(base)
        )

    def _storage(self, base: Path) -> list[str]:
        (base / "podman").mkdir(mode=0o700, exist_ok=True)
        run = _short(base)
        # Without a range of user ids, all files are this user's (containers-storage.conf(5), ignore_chown_errors).
        driver = ("--storage-driver=vfs", "--storage-opt=vfs.ignore_chown_errors=true")
        places = (f"--root={base}/podman/storage", f"--runroot={run}", f"--tmpdir={run}/tmp")
        return [self.podman, *places, *driver, "--cgroup-manager=cgroupfs", "--events-backend=none"]

    def _extra(self, base: Path) -> dict[str, str]:
        return {"XDG_RUNTIME_DIR": str(_short(base)), "TMPDIR": f"{base}/podman"}

    def tidy(self, base: Path, build_context: BuildContext) -> None:
        """Remove what it stored, some of which is another user's where this one has a range of ids (podman-unshare(1)).

        The process that keeps its namespace is ended, too (podman-system-migrate(1)).
        """
        if not (base / "podman").exists():
            return
        variables = {**build_context.context.variables, **self._extra(base)}
        with suppress(OSError, subprocess.SubprocessError, CarrelError):
            for words in (("unshare", "rm", "-rf", f"{base}/podman/storage"), ("system", "migrate")):
                # Also where the job was cancelled.
                subprocess.run([*self._storage(base), *words], env=variables, capture_output=True, timeout=_TIDY, check=False)
        remove_tree(_short(base))


def _short(base: Path) -> Path:
    """A directory for podman's sockets, always the same for `base`: it refuses long paths, and other ones later."""
    path = Path("/tmp", f"carrel-{hashlib.sha256(os.fsencode(base)).hexdigest()[:16]}")
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.geteuid():
        raise EnvironmentFailed(f"{path} is somebody else's.", remedy="Submit again.")
    return path


def _global(base: Path) -> list[str]:
    (base / "tmp").mkdir(exist_ok=True)
    # Which signatures an image needs is the machine's to say; where it says nothing, none.
    return [f"--tmpdir={base}/tmp", *([] if _POLICY.exists() else ["--insecure-policy"])]


def _tls(option: str, reference: str) -> list[str]:
    return [f"{option}=false"] if _HERE.match(reference) else []


def _variables(layout: Path) -> Sequence[str]:
    """Return what the image of an OCI layout sets (image specification, config.md, Env)."""
    try:
        index = parse_json(read_regular(layout / "index.json", _LARGEST))
        manifest = _blob(layout, index["manifests"][0]["digest"])
        return [str(line) for line in _blob(layout, manifest["config"]["digest"]).get("config", {}).get("Env") or []]
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise EnvironmentFailed(f"What the image says of itself cannot be read: {error}.") from error


def _blob(layout: Path, digest: str) -> Any:
    kind, _, name = digest.partition(":")
    if not re.fullmatch(r"[a-z0-9]+", kind) or not re.fullmatch(r"[0-9a-f]+", name):
        raise ValueError(f"{digest[:80]} is no digest")
    return parse_json(read_regular(layout / "blobs" / kind / name, _LARGEST))
