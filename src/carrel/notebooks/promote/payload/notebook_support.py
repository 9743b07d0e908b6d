"""What IPython did for the cells of this script while they were a notebook. `carrel promote` put this file here.

Standard library only; Python 3.9 and newer. The meaning is that of IPython 9's documentation ("Built-in magic commands",
"Python vs IPython") where nothing else is said.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import atexit
import itertools
import os
import pprint
import runpy
import shlex
import string
import subprocess
import sys
import time
import timeit as _timeit
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

#: Where figures go; fixed now, because cells may change the directory.
OUTPUTS = Path(os.environ.get("CARREL_OUTPUT_DIR") or Path.cwd() / "outputs")
#: Containers that are printed over several lines when one is too narrow.
_CONTAINERS = (dict, list, tuple, set, frozenset)
_WIDTH = 79
_LONGEST = 1000

_figures = 0
_loop: Optional[asyncio.AbstractEventLoop] = None


# --- values


def show(value: object) -> None:
    """Print what a notebook shows below a cell: the value of its last expression, as text; nothing for None.

    Figures and pictures are saved in `OUTPUTS` instead.
    """
    if value is None or _save_picture(value):
        return
    if isinstance(value, type):
        text = value.__qualname__ if value.__module__ == "builtins" else f"{value.__module__}.{value.__qualname__}"
    elif type(value) in _CONTAINERS:  # subclasses (Counter, a named tuple …) have a repr of their own
        text = _pretty(value)
    else:
        text = repr(value)
    print(text, flush=True)


def _pretty(value: Any) -> str:
    """A container as text, with no more than its first thousand items."""
    if len(value) <= _LONGEST:
        return pprint.pformat(value, width=_WIDTH, sort_dicts=False)
    first = itertools.islice(value.items() if isinstance(value, dict) else value, _LONGEST)
    text = pprint.pformat(type(value)(first), width=_WIDTH, sort_dicts=False)
    end = 2 if isinstance(value, frozenset) else 1
    return f"{text[:-end]},\n ...{text[-end:]}"


def display(*values: object, **options: object) -> None:  # noqa: ARG001 - what IPython takes besides has no meaning in text
    """Print values as `show` does."""
    for value in values:
        show(value)


def next_figure() -> Path:
    """Return the place of the next figure: outputs/figure-1.png, figure-2.png …"""
    global _figures
    _figures += 1
    OUTPUTS.mkdir(parents=True, exist_ok=True)
    return OUTPUTS / f"figure-{_figures}.png"


def use_figures() -> None:
    """Have matplotlib save what it shows; nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("module://notebook_figures")


def end_cell() -> None:
    """Save and close the figures that a cell drew, as the inline backend does."""
    figures = sys.modules.get("notebook_figures")
    if figures is not None:
        figures.show()


def _save_picture(value: object) -> bool:
    if hasattr(value, "savefig") and hasattr(value, "canvas"):
        figures = sys.modules.get("notebook_figures")
        if figures is not None:
            figures.save(value)
        else:
            _say_saved(next_figure(), value.savefig)
        return True
    make = getattr(value, "_repr_png_", None)
    if make is None or isinstance(value, type):
        return False
    data = make()
    data = data[0] if isinstance(data, tuple) else data
    if not isinstance(data, bytes):
        return False
    _say_saved(next_figure(), lambda path: Path(path).write_bytes(data))
    return True


def _say_saved(path: Path, save: Callable[[Path], object]) -> None:
    save(path)
    print(f"[{path.name}]", flush=True)


# --- the shell


class Lines(list):  # type: ignore[type-arg]
    """The lines that a command wrote, with IPython's other views of them."""

    @property
    def n(self) -> str:
        """One text with newlines."""
        return "\n".join(self)

    @property
    def s(self) -> str:
        """One text with blanks."""
        return " ".join(self)

    @property
    def l(self) -> list[str]:  # noqa: E743
        """A plain list."""
        return list(self)

    nlstr, spstr = n, s


def shell(command: str) -> None:
    """``!command``: run it and show what it writes. Its exit code is in `_exit_code`; it raises nothing."""
    frame = sys._getframe(1)
    code = _run(expand(command, frame), stdout=None)[0]
    frame.f_globals["_exit_code"] = code if code <= 128 else 128 - code


def output(command: str) -> Lines:
    """``x = !command``: run it and return the lines that it wrote, errors included."""
    frame = sys._getframe(1)
    return Lines(_run(expand(command, frame), stdout=subprocess.PIPE)[1].splitlines())


def _run(command: str, *, stdout: Optional[int]) -> tuple[int, str]:
    if command.rstrip().endswith("&"):
        raise OSError("Background processes not supported.")
    _flush()
    # Both streams go the same way, so that their lines keep their order.
    done = subprocess.run(
        command,
        shell=True,
        executable=os.environ.get("SHELL") or "/bin/sh",
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT if stdout is not None else None,
        check=False,
    )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return code, (done.stdout or b"").decode(errors="replace")


def script(arguments: str, text: str, *, check: bool = True) -> None:
    """``%%bash`` and its like: give `text` to a program's standard input; raise `CalledProcessError` when it fails."""
    words = [expand(word, sys._getframe(1)) for word in shlex.split(arguments)]
    _flush()
    done = subprocess.run(words, input=text.encode(), check=False)
    if check and done.returncode:
        raise subprocess.CalledProcessError(done.returncode, words)


class _Expander(string.Formatter):
    """``{expression}`` and ``$name`` in the line of a magic."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = dict(names)

    def parse(self, format_string: str) -> Iterator[tuple[str, Optional[str], Optional[str], Optional[str]]]:
        for literal, field, spec, conversion in super().parse(format_string):
            yield from self._dollars(literal)
            if field is not None:
                # A colon is a slice here, not a format.
                yield "", f"{field}:{spec}" if spec else field, "", conversion

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return eval(field_name, self._names), field_name

    def _dollars(self, text: str) -> Iterator[tuple[str, Optional[str], Optional[str], Optional[str]]]:
        """`$name`; `$$name` is a dollar; and between single quotes a dollar is one, as in a shell."""
        plain, position = "", 0
        while position < len(text):
            end = position + 1
            if text[position] == "$" and text.count("'", position) % 2 == 0:
                doubled = text.startswith("$$", position)
                start = position + (2 if doubled else 1)
                end = start
                while end < len(text) and (text[end].isalnum() or text[end] in "_."):
                    end += 1
                if end > start and not doubled:
                    yield plain, text[start:end], "", None
                    plain, position = "", end
                    continue
                if end > start:
                    plain, position = plain + text[position + 1 : end], end
                    continue
                end = position + 1
            plain += text[position:end]
            position = end
        yield plain, None, None, None


def expand(line: str, frame: Any) -> str:
    """Return a line with the values of Python's names in it; as it is when one of them has none, as IPython does."""
    try:
        return _Expander({**frame.f_globals, **frame.f_locals}).vformat(line, (), {})
    except Exception:  # noqa: BLE001 - whatever evaluating the user's expression raises
        return line


# --- other magics


def set_env(assignment: str) -> None:
    """``%env NAME=value``: set a variable and say so; ``%env NAME``: show it."""
    text = expand(assignment, sys._getframe(1)).strip()
    name, equals, value = text.partition("=")
    if not equals:
        name, _, value = text.partition(" ")
        if not value:
            show(os.environ.get(name, f"Environment does not have key: {name}"))
            return
    os.environ[name.strip()] = value.strip()
    print(f"env: {name.strip()}={value.strip()}", flush=True)


_before: list[str] = []


def cd(place: str) -> None:
    """``%cd``: change the directory and say so; a place that is not there is said, not raised."""
    text = expand(place, sys._getframe(1)).strip()
    quiet = text.startswith("-q")
    text = text[2:].strip() if quiet else text
    target = _before[-1] if text == "-" and _before else os.path.expanduser(text.strip("'\"") or "~")
    here = os.getcwd()
    try:
        os.chdir(target)
    except OSError as error:
        print(error, file=sys.stderr)
        return
    _before.append(here)
    if not quiet:
        print(os.getcwd(), flush=True)


def run(arguments: str, *, shared: bool = False) -> None:
    """``%run file.py arguments``: run it as a program, then take over its names. `shared` (``-i``): with ours from the start."""
    frame = sys._getframe(1)
    file, *rest = shlex.split(expand(arguments, frame))
    file = os.path.expanduser(file)
    names, kept = frame.f_globals, sys.argv
    own = {name: value for name, value in names.items() if not name.startswith("__")}
    place = os.path.dirname(os.path.abspath(file))
    sys.argv = [file, *rest]
    sys.path.insert(0, place)
    try:
        found = runpy.run_path(file, init_globals=own if shared else None, run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            print(f"{file} left with {stop.code}", file=sys.stderr)
        return
    finally:
        sys.argv = kept
        sys.path.remove(place)
    names.update((name, value) for name, value in found.items() if not name.startswith("__"))


def write_file(path: str, text: str, *, append: bool = False) -> None:
    """``%%writefile``: write the rest of the cell to a file and say so."""
    place = Path(expand(path, sys._getframe(1)).strip().strip("'\"")).expanduser()
    print(f"{'Writing' if not place.exists() else 'Appending to' if append else 'Overwriting'} {place}", flush=True)
    with place.open("a" if append else "w", encoding="utf-8") as file:
        file.write(text)


class Timer:
    """``%time``: processor and wall time from its making to `stop`."""

    def __init__(self) -> None:
        self._processor, self._wall = os.times(), time.perf_counter()

    def stop(self) -> None:
        """Print the times."""
        wall, now = time.perf_counter() - self._wall, os.times()
        user, system = now.user - self._processor.user, now.system - self._processor.system
        print(f"CPU times: user {_seconds(user)}, sys: {_seconds(system)}, total: {_seconds(user + system)}")
        print(f"Wall time: {_seconds(wall)}", flush=True)


def timeit(statement: str, setup: str = "pass", *, number: int = 0, repeat: int = 7) -> None:
    """``%timeit``: run a statement many times and print how long one takes."""
    frame = sys._getframe(1)
    timer = _timeit.Timer(statement, setup, globals={**frame.f_globals, **frame.f_locals})
    count = number or timer.autorange()[0]
    times = [total / count for total in timer.repeat(repeat, count)]
    mean = sum(times) / len(times)
    deviation = (sum((one - mean) ** 2 for one in times) / len(times)) ** 0.5
    print(
        f"{_seconds(mean)} ± {_seconds(deviation)} per loop (mean ± std. dev. of {repeat} runs, {count} loops each)", flush=True
    )


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}" if value < 60 else f"{int(value // 60)}min {value % 60:.0f}s"
    return f"{value * 1e9:.3g} ns" if value > 0 else "0 ns"


def wait(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a cell that awaits. All such cells share one event loop, so that what one starts the next can await."""
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
        asyncio.set_event_loop(_loop)
        atexit.register(_close_loop, _loop)
    _loop.run_until_complete(coroutine)


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def get_ipython() -> None:
    """None, as outside IPython."""
    return


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


# --- values of parameters


def truth(text: str) -> bool:
    """Read a parameter of type bool; the words are those of `carrel run -P`."""
    word = text.lower()
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise argparse.ArgumentTypeError(f'"{text}" is neither true nor false')


def literal(text: str) -> Any:
    """Read a parameter whose default is a list, a dict or None: a Python literal, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
