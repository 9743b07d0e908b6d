"""calls.def against the driver's API as NVIDIA declares it, in the Cython declarations of cuda-bindings."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from residency_rig import SOURCES

_ROW = re.compile(r"^CALL\((\w+), (\w+), (\d+), (\w+), (\w+)\)$", re.MULTILINE)
_VERSION = re.compile(r"(_v\d+)?(_pt[sd][sz])?$")

#: What neither works on the device nor takes memory there, or has a wrapper of its own, by the words that such names hold.
_OTHERS = re.compile(
    r"""Get|Query|Synchronize|Destroy|Unload|Release|Unmap|Exchange|IsCapturing|Occupancy|Tensor|TexRef|TexObject|SurfObject|SurfRef
    |Checkpoint|Coredump|Logs|Profiler|Link|Param|Set(?!Access)|PoolSet|Trim|Split|Generate|Register|Pop|Push|Attach$|Detach|Advise|HostAlloc|AllocHost
    |FreeHost|UserObject|GraphAdd|GraphC|GraphNode|GraphRe|GraphExec|GraphDebug|GraphKernel|GraphHost|GraphMem|GraphBatch|GraphExternal
    |GraphConditional|GraphChild|GraphEvent|CtxReset|EventCreate|EventElapsed|FuncIsLoaded|Enumerate|Export|Ipc|Import|Unbind|AddDevice
    |Unregister|TotalMem|RetainAllocation|cuEGL|cuGL(?!Ctx)|LogicalEndpoint|CopyAttributes|UpdateCapture|Disable|CanAccess|ComputeCapability|cuInit|Flush|MapArray|AddressFree|AddressReserve|cuMemFree$""",
    re.VERBOSE,
)
#: Those have wrappers of their own.
_OWN = {"cuMemAlloc", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMulticastBindMem"}


def declared() -> dict[str, list[str]]:
    """Functions of the driver, and the types of their arguments."""
    found = importlib.util.find_spec("cuda.bindings")
    if found is None or not found.submodule_search_locations:
        pytest.fail("cuda-bindings is not installed: make setup")
    text = (Path(found.submodule_search_locations[0]) / "cydriver.pxd").read_text()
    functions = {}
    for name, arguments in re.findall(r"^cdef CUresult (cu\w+)\(([^)]*)\)", text, re.MULTILINE):
        functions[name] = [one.strip() for one in arguments.split(",") if one.strip()]
    assert len(functions) > 300
    return functions


def rows() -> dict[str, list[tuple[str, int, str]]]:
    found: dict[str, list[tuple[str, int, str]]] = {}
    for family, symbol, count, kind, _ in _ROW.findall((SOURCES / "calls.def").read_text()):
        found.setdefault(family, []).append((symbol, int(count), kind))
    return found


def test_each_call_has_its_arguments_and_none_is_a_fraction() -> None:
    functions = declared()
    for family, versions in rows().items():
        assert all(_VERSION.sub("", symbol) == family for symbol, _, _ in versions), family
        count = versions[0][1]
        assert all(number == count for _, number, _ in versions)
        for symbol, _, _ in versions:  # those that CUDA 13 dropped are still in older drivers
            assert len(functions.get(symbol, ())) <= count, symbol
        assert count <= 11
        for argument in functions.get(family, ()):
            assert not re.match(r"(float|double)\b(?!\s*\*)", argument), (family, argument)
            assert "*" in argument or "CUipc" not in argument, (family, argument)  # 64 bytes by value


def test_what_reaches_the_device_passes_the_gate() -> None:
    """A function that is new to us must be put into calls.def, or named here as one that does not reach the device."""
    known = set(rows()) | _OWN
    unknown = [name for name in declared() if _VERSION.sub("", name) not in known and not _OTHERS.search(name)]
    assert unknown == []
