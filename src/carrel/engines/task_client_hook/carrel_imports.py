"""Calls a function when a module has been imported, before the program can use it. Standard library alone, Python 3.8."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class _OnImport:
    """Sees each module imported, once."""

    def __init__(self, option: str, steps: Mapping[str, Callable[[Any], None]]) -> None:
        self._option = option
        self._steps = dict(steps)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        step = self._steps.pop(name, None)
        if step is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._wrap(name, spec, step)
                return spec
        return None

    def _wrap(self, name: str, spec: ModuleSpec, step: Callable[[Any], None]) -> None:
        loader = spec.loader
        if loader is None or isinstance(loader, type):  # one that all modules share
            return
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _take(self._option, name, step, module)

        loader.exec_module = exec_module  # type: ignore[method-assign]


def _take(option: str, name: str, step: Callable[[Any], None], module: Any) -> None:
    try:
        step(module)
    except RuntimeError:  # what the job must not go on with
        raise
    except Exception as error:  # noqa: BLE001 - a version that nobody thought of must not end the program
        print(f"carrel: {option}: {name} cannot be set: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def when_imported(option: str, steps: Mapping[str, Callable[[Any], None]]) -> None:
    """Call the steps of modules that are imported now, and the others when they are. `option` is named where one fails."""
    later = {name: step for name, step in steps.items() if name not in sys.modules}
    for name in steps.keys() - later.keys():
        _take(option, name, steps[name], sys.modules[name])
    sys.meta_path.insert(0, _OnImport(option, later))
