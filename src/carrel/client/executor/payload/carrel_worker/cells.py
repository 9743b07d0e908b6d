"""Carries out cells of notebooks, and calls that are watched: what they show and how they fail goes back as plain values."""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import importlib
import inspect
import linecache
import os
import subprocess
import sys
import traceback
import types
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any, NoReturn

from carrel_worker import display, figures, pickling
from carrel_worker.failures import value_of

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep


def cell(order: dict[str, Any], parts: list[Any]) -> dict[str, Any]:
    """Run the source of a cell among the variables in `parts`.

    `order`: `source`, `filename` by which tracebacks name it, `modules` below those that are variables, `back` (names that come
    back), `shows` (whether the value of the last expression is shown), `limit` (bytes that may come back), `directory` in which
    the caller works, and what IPython's shell has of the caller's (`shell.run`).
    """

    def work() -> Any:
        anchor, variables = pickling.load_parts(parts)
        # Functions of the notebook stand on the same variables as the cell.
        space = anchor.__globals__
        space.update(variables)
        for name in order["modules"]:
            with contextlib.suppress(ImportError):  # the cell may not need it
                importlib.import_module(name)
        with _as_main(space):
            value = _execute(order, space) if shell is None else shell.run(order, space)
            return _found(order["back"], space, value)

    shell = _shell()
    return _watched(order, work, shell)


def call(order: dict[str, Any], parts: list[Any]) -> dict[str, Any]:
    """Call the function in `parts` with its arguments; what it returns comes back."""

    def work() -> Any:
        function, args, kwargs = pickling.load_parts(parts)
        space = getattr(function, "__globals__", {})
        with _as_main(space if space.get("__name__") == "__main__" else {}):
            try:
                return function(*args, **kwargs)
            finally:
                if shell is not None:
                    shell.events.trigger("post_execute")

    shell = _shell()
    return _watched(order, work, shell)


def _shell() -> Any:
    """IPython's shell; None where there is no IPython, or one that is too old."""
    try:
        from carrel_worker import shell
    except ImportError:
        return None
    return shell.make()


def _watched(order: dict[str, Any], work: Callable[[], Any], shell: Any) -> dict[str, Any]:
    os.environ.setdefault("MPLBACKEND", figures.BACKEND)
    builtins.input = sys.breakpointhook = _nobody_answers
    screen = display.screen = display.Screen(display.send)
    outcome: dict[str, Any] = {"shown": screen.messages, "back": None, "error": None, "exception": None}
    with contextlib.suppress(OSError):  # it is another machine's, or behind walls
        os.chdir(order.get("directory", "."))
    if "" not in sys.path:  # modules of that directory, as in a notebook
        sys.path.append("")
    try:
        back = work()
        figures.show()
        outcome["back"] = _packed(back, order["limit"], "What the call returned" if order.get("back") is None else "")
    except BaseException as error:
        try:
            figures.show()
        except Exception:
            traceback.print_exc()
        outcome["error"] = facts(error)
        outcome["error"]["shown"] = shell is not None and shell.raised is error
        try:
            outcome["exception"] = [PickleBuffer(part) for part in pickling.dump(error.with_traceback(None))]
        except Exception:  # it is known by its traceback alone
            outcome["exception"] = None
    finally:
        display.screen = None
        if shell is not None:
            shell.raised = None
        if screen.messages and display.flush is not None:
            display.flush()
    return outcome


def _nobody_answers(*_arguments: object, **_options: object) -> NoReturn:
    raise EOFError("Nobody answers input() or a debugger in a remote cell. Ask in a cell of its own, and use its variable here.")


def _execute(order: dict[str, Any], space: dict[str, Any]) -> Any:
    """Run a cell without IPython; return the value of its last expression."""
    source, filename = order["source"], order["filename"]
    space.setdefault("display", display.display)
    space["get_ipython"] = _Shell
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    tree = ast.parse(source, filename)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if tree.body:
        _evaluate(compile(tree, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
    if last is None:
        return None
    expression = ast.Expression(last.value)  # type: ignore[attr-defined]
    value = _evaluate(compile(expression, filename, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
    if order["shows"] and value is not None:
        data, metadata = display.bundle(value)
        display.put({"kind": "result", "data": data, "metadata": metadata})
    return value


def _evaluate(code: types.CodeType, space: dict[str, Any]) -> Any:
    found = eval(code, space)
    if code.co_flags & inspect.CO_COROUTINE:
        return asyncio.run(_awaited(found))
    return found


async def _awaited(found: Any) -> Any:
    return await found


def _found(back: list[str], space: dict[str, Any], value: Any) -> dict[str, Any]:
    found = {}
    for name in back:
        if name in space:
            found[name] = space[name]
        elif len(back) == 1:
            found[name] = value
        else:
            raise NameError("as={}: the cell has made no variable of this name.".format(name))
    return found


def _packed(back: Any, limit: int, what: str) -> list[Any]:
    """What comes back, pickled as one so that what it shares stays shared. Raises errors that name what cannot."""
    try:
        parts = pickling.dump(back)
    except Exception as error:
        said = what or ", ".join(name for name, value in back.items() if not _size(value)) or "What comes back"
        text = "{} cannot be pickled ({}: {}). Let the cell make what can be (numbers, arrays, a state_dict), or write a file."
        raise TypeError(text.format(said, type(error).__name__, error)) from None
    if pickling.size_of(parts) > limit:
        sizes = "" if what else ": " + ", ".join("{} {:.4g} MiB".format(*one) for one in _sizes(back))
        text = "{} has {:.4g} MiB{}; the limit is {:.4g} MiB. Write it to a file, or raise the limit: limit=8G."
        raise ValueError(text.format(what or "What comes back", pickling.size_of(parts) / 2**20, sizes, limit / 2**20))
    return [PickleBuffer(part) for part in parts]


def _sizes(back: dict[str, Any]) -> list[tuple[str, float]]:
    return [(name, _size(value) / 2**20) for name, value in back.items()]


def _size(value: Any) -> int:
    """Bytes of a pickled value; 0 when it cannot be pickled."""
    try:
        return pickling.size_of(pickling.dump(value))
    except Exception:
        return 0


class _as_main:
    """`__main__` is the notebook for a while: processes that calls start, and their queues, find its functions there."""

    def __init__(self, space: dict[str, Any]) -> None:
        self._space = space

    def __enter__(self) -> None:
        self._before = sys.modules["__main__"]
        if not self._space:
            return
        module = types.ModuleType("__main__")
        space = self._space

        def look(name: str) -> Any:
            try:
                return space[name]
            except KeyError:
                raise AttributeError("module '__main__' has no attribute {!r}".format(name)) from None

        module.__getattr__ = look  # type: ignore[method-assign] # PEP 562
        sys.modules["__main__"] = module

    def __exit__(self, *_: Any) -> None:
        sys.modules["__main__"] = self._before


class _Shell:
    """`get_ipython()` of a remote cell: what `!commands` need."""

    @staticmethod
    def system(command: str) -> None:
        """`!command`."""
        subprocess.run(command, shell=True, check=False)

    @staticmethod
    def getoutput(command: str, **_options: Any) -> list[str]:
        """`x = !command`."""
        found = subprocess.run(command, shell=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return found.stdout.splitlines()

    @staticmethod
    def run_line_magic(name: str, *_: Any, **_options: Any) -> None:
        """`%name line`."""
        if name != "matplotlib":
            raise RuntimeError("%{} does not work in a remote cell; use it in a cell of its own.".format(name))

    @staticmethod
    def run_cell_magic(name: str, *_: Any) -> None:
        """`%%name`."""
        raise RuntimeError("%%{} does not work in a remote cell; use it in a cell of its own.".format(name))


def facts(error: BaseException, seen: frozenset[int] = frozenset()) -> dict[str, Any]:
    """An exception as plain values; its frames (file, line, function, source) are without this program's."""
    found = traceback.extract_tb(error.__traceback__)
    frames = [(one.filename, one.lineno, one.name, one.line or "") for one in found if not _is_ours(one)]
    seen = seen | {id(error)}
    cause, context = error.__cause__, None if error.__suppress_context__ else error.__context__
    return {
        "name": type(error).__name__,
        "value": value_of(error),
        "words": traceback.format_exception_only(type(error), error),
        "frames": frames,
        "cause": facts(cause, seen) if cause is not None and id(cause) not in seen else None,
        "context": facts(context, seen) if cause is None and context is not None and id(context) not in seen else None,
    }


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OWN) or (frame.name, os.path.basename(frame.filename)) == (
        "run_code",
        "interactiveshell.py",
    )
