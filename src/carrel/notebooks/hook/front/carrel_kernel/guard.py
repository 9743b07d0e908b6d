"""The first use of CUDA in this process, seen before it happens."""

import importlib.abc
import importlib.util
import os
import sys
import threading
from contextlib import suppress

#: Modules that take the GPU as soon as they are imported or in places that cannot be caught: their import is the first use.
AT_IMPORT = frozenset(
    {
        "cupy",
        "cudf",
        "cuml",
        "rmm",
        "pycuda.driver",
        "numba.cuda",
        "cuda.bindings.driver",
        "jax_cuda12_plugin",
        "jax_cuda13_plugin",
    }
)


class Guard(importlib.abc.MetaPathFinder):
    """Sees the first use of CUDA coming, and calls `first_use` before it. After that it costs nothing."""

    def __init__(self, first_use):
        """`first_use()`: returns when the calling thread may go on, or raises."""
        self._first_use = first_use
        self._pid = os.getpid()
        self._busy = threading.local()
        #: True once the process has a CUDA state, or may have.
        self.touched = False

    def install(self):
        """Watch imports and the loading of the driver's library."""
        sys.meta_path.insert(0, self)
        sys.addaudithook(self._audit)
        for name in ("torch", *AT_IMPORT):
            if name in sys.modules:
                self._imported(name, sys.modules[name])

    def use(self):
        """The calling thread is about to use CUDA for the first time: returns when it may. Raises what the wait ended with."""
        if self.touched or os.getpid() != self._pid or getattr(self._busy, "inside", False):
            return
        self._busy.inside = True
        try:
            self._first_use()
            self.touched = True
        finally:
            self._busy.inside = False

    def look(self):
        """Notice a use that nothing else has seen: the driver's memory device is open (only CUDA opens it)."""
        if not self.touched:
            with suppress(OSError):
                for number in os.listdir("/proc/self/fd"):
                    with suppress(OSError):
                        if os.readlink("/proc/self/fd/" + number) == "/dev/nvidia-uvm":
                            self.touched = True
                            break
        return self.touched

    def _audit(self, event, arguments):
        if event == "ctypes.dlopen" and not self.touched:
            name = arguments[0] if arguments else None
            if isinstance(name, (str, bytes)) and "libcuda.so" in (name if isinstance(name, str) else os.fsdecode(name)):
                self.use()

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002 - as importlib calls it
        """PEP 451: hands the import on, and adds a word to what executes the module."""
        if self.touched or (name != "torch" and name not in AT_IMPORT) or getattr(self._busy, "finding", None) == name:
            return None
        self._busy.finding = name
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        finally:
            self._busy.finding = None
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _Listening(spec.loader, self._imported, self._importing)
        return spec

    def _importing(self, name):
        if name in AT_IMPORT:
            self.use()

    def _imported(self, name, module):
        if name != "torch":
            return
        inner = getattr(module, "_C", None)
        original = getattr(inner, "_cuda_init", None)
        if original is None:  # a build without CUDA
            return

        def _cuda_init(*arguments, **named):
            self.use()
            return original(*arguments, **named)

        with suppress(Exception):
            inner._cuda_init = _cuda_init


class _Listening(importlib.abc.Loader):
    """A loader that says when it begins and when it is done."""

    def __init__(self, loader, done, begins):
        self._loader = loader
        self._done = done
        self._begins = begins

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._begins(module.__name__)
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with suppress(Exception):
            self._done(module.__name__, module)

    def __getattr__(self, name):
        return getattr(self._loader, name)
