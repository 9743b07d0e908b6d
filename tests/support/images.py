"""Small images of this machine's own programs, as archives that registries and tools know (OCI image specification 1.0)."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def libraries(*paths: str) -> dict[str, Path]:
    """Return what these programs and libraries load, by its place (ldd(1))."""
    said = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=False).stdout
    return {path.lstrip("/"): Path(path).resolve() for path in re.findall(r"(/\S+) \(0x", said)}


#: What a kernel imports of an environment with ipykernel, and no more.
KERNEL = (
    "IPython", "asttokens", "comm", "dateutil", "decorator.py", "executing", "ipykernel", "ipykernel_launcher.py",
    "ipython_pygments_lexers.py", "jupyter_client", "jupyter_core", "matplotlib_inline", "nest_asyncio.py", "nest_asyncio2.py",
    "packaging", "pexpect", "platformdirs", "prompt_toolkit", "psutil", "ptyprocess", "pure_eval", "pygments", "pyzmq.libs",
    "six.py", "stack_data", "tornado", "traitlets", "typing_extensions.py", "wcwidth", "zmq",
)  # fmt: skip


def python(*packages: str) -> dict[str, Path]:
    """Return the Python that runs this, as `usr/bin/python3`, with these directories and files of its packages."""
    library, site = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    inside = f"usr/lib/{library.name}"
    program = os.path.realpath(sys.executable)
    found = {"usr/bin/python3": Path(program)}
    own = sorted({path.name for path in library.iterdir()} - {"test", "site-packages", "idlelib", "ensurepip", "turtledemo"})
    for base, place, names in ((library, inside, own), (site, f"{inside}/site-packages", packages)):
        for name in names:
            for path in [base / name] if (base / name).is_file() else sorted((base / name).rglob("*")):
                if path.is_file() and not {"__pycache__", "tests"} & set(path.parts):
                    found[f"{place}/{path.relative_to(base)}"] = path
    loaded = libraries(program, *(str(path) for path in found.values() if ".so" in path.suffixes))
    # What packages bring along is beside them already.
    return found | {place: path for place, path in loaded.items() if not path.is_relative_to(site)}


def programs(*names: str) -> dict[str, Path]:
    """Return programs of this machine, by their place in an image, with the libraries that they load (ldd(1))."""
    found: dict[str, Path] = {}
    for name in names:
        program = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
        assert program is not None, name
        found |= {f"bin/{name}": Path(program).resolve(), **libraries(program)}
    return found


def write_layer(files: Mapping[str, bytes | Path | str | None]) -> bytes:
    """Return a layer: content by place; text is where a link leads, None is a directory, ".wh.NAME" takes NAME away."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        made: set[str] = set()
        for place, content in files.items():
            for parent in reversed(Path(place).parents[:-1]):
                if str(parent) not in made and str(parent) not in files:
                    made.add(str(parent))
                    archive.addfile(_entry(str(parent), tarfile.DIRTYPE))
            if content is None:
                archive.addfile(_entry(place, tarfile.DIRTYPE))
            elif isinstance(content, str):
                link = _entry(place, tarfile.SYMTYPE)
                link.linkname = content
                archive.addfile(link)
            else:
                data = content if isinstance(content, bytes) else content.read_bytes()
                file = _entry(place, tarfile.REGTYPE)
                file.size = len(data)
                archive.addfile(file, io.BytesIO(data))
    return buffer.getvalue()


def _entry(name: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.mode = 0o755
    return entry


def make_image(layers: Sequence[bytes], variables: Mapping[str, str] | None = None) -> tuple[str, dict[str, bytes]]:
    """Return the digest of an image's manifest, and all of its blobs by digest."""
    blobs: dict[str, bytes] = {}

    def add(data: bytes, kind: str) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        blobs[digest] = data
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    told = [add(layer, _LAYER) for layer in layers]
    configuration = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": [f"{name}={value}" for name, value in (variables or {}).items()]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in told]},
    }
    config = add(json.dumps(configuration).encode(), _CONFIG)
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": told}
    return str(add(json.dumps(manifest).encode(), _MANIFEST)["digest"]), blobs


def write_archive(path: Path, layers: Sequence[bytes], variables: Mapping[str, str] | None = None) -> str:
    """Write an image as an OCI archive; return the digest of its manifest."""
    digest, blobs = make_image(layers, variables)
    index = {"schemaVersion": 2, "manifests": [{"mediaType": _MANIFEST, "digest": digest, "size": len(blobs[digest])}]}
    with tarfile.open(path, "w") as archive:
        files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
        files |= {f"blobs/{name.replace(':', '/')}": data for name, data in blobs.items()}
        # Directories too, and all of the caller's own, as skopeo writes them: it unpacks no other as an ordinary user.
        for name, data in {"blobs": None, "blobs/sha256": None, **files}.items():
            entry = _entry(name, tarfile.DIRTYPE if data is None else tarfile.REGTYPE)
            entry.uid, entry.gid = os.getuid(), os.getgid()
            if data is None:
                entry.mode = 0o755
                archive.addfile(entry)
                continue
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return digest
