"""Puts the lab's client at the end of the import path: what the environment has wins. Standard library alone, Python 3.8.

It lies in a directory of its own, which PYTHONPATH names; the `sitecustomize` that is found without it is run as ever.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

TYPE_CHECKING = False  # every Python of a task runs this when it starts, and need not import typing for it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _add_client() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    modules = os.path.join(os.path.dirname(_HERE), "modules")
    if modules not in sys.path:
        sys.path.append(modules)


def _run_other() -> None:
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _lab_backend() -> object:
    from carrel.lab.tracking.nested import nested_backend

    return nested_backend()


class _NestedRuns:
    """Makes the lab the backend that `mlflow.run` takes where none is named, when MLflow's table of backends is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None, /) -> ModuleSpec | None:
        if name != "mlflow.projects.backend.loader":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                backends = getattr(module, "MLFLOW_BACKENDS", None)
                if isinstance(backends, dict):
                    backends["local"] = _lab_backend

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


# They lie beside this file, which is on the path until the client is.
if "CARREL_SEED" in os.environ:
    import carrel_deterministic  # type: ignore[import-not-found]
    from carrel_imports import when_imported  # type: ignore[import-not-found]

    when_imported("--deterministic", carrel_deterministic.STEPS)
if "CARREL_ORDER_DIR" in os.environ:
    import carrel_order  # type: ignore[import-not-found]
    from carrel_imports import when_imported

    if carrel_order.is_ours():
        carrel_order.ours = True
        when_imported("--order", {"torch.utils.data.dataloader": carrel_order.loaders})
if "MLFLOW_RUN_ID" in os.environ or "CARREL_MLFLOW_RUN_LATER" in os.environ:
    import carrel_experiments  # type: ignore[import-not-found]
    from carrel_imports import when_imported

    when_imported("mlflow", carrel_experiments.STEPS)
if "CARREL_STACKS" in os.environ:
    import carrel_stacks  # type: ignore[import-not-found]

    carrel_stacks.listen()
_add_client()
if "CARREL_MLFLOW_NESTED" in os.environ:
    sys.meta_path.insert(0, _NestedRuns())
_run_other()
