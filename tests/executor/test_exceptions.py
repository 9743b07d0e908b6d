"""What calls raise, as it arrives: type, words, traceback with the caller's lines."""

from __future__ import annotations

import importlib
import linecache
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import cloudpickle
import pytest
import raising

from carrel import Client, Executor
from carrel.client.executor import RemoteError, RemoteTraceback
from carrel.testing.waiting import PATIENCE
from support.lab_process import LabProcess


@pytest.fixture
def executor(client: Client) -> Iterator[Executor]:
    with Executor(1, requirements=[], modules=[raising], cpus=1, memory="256M", client=client) as executor:
        yield executor


def raised(executor: Executor, function: Any, *args: Any, **options: Any) -> tuple[BaseException, str]:
    """The exception of a call, and all that Python says of it; its cause is the traceback of the worker."""
    error = executor.submit(function, *args, **options).exception(PATIENCE)
    assert error is not None
    assert isinstance(error.__cause__, RemoteTraceback)
    return error, "".join(traceback.format_exception(error))


#: Exception, its arguments, its words, its attributes.
_ARRIVE: list[tuple[str, tuple[Any, ...], dict[str, Any], str, dict[str, Any]]] = [
    ("TwoArguments", (3, "boo"), {}, "3: boo", {"code": 3}),
    ("KeywordOnly", (3,), {"detail": "boo"}, "3:boo", {"detail": "boo"}),
    ("Doubled", ("boo",), {}, "because of boo", {}),
    ("OfTheSystem", ("/there",), {}, "[Errno 28] no room: '/there'", {"errno": 28, "filename": "/there"}),
    ("WithASlot", (), {"reason": "boo"}, "boo", {"reason": "boo"}),
    ("Frozen", ("boo",), {}, "boo 4", {"reason": "boo"}),
    ("Group", ([KeyError("a"), TypeError("b")],), {}, "2 together (2 sub-exceptions)", {"message": "2 together"}),
]


def test_exceptions_arrive_whatever_makes_them(executor: Executor) -> None:
    for name, args, options, words, attributes in _ARRIVE:
        error, shown = raised(executor, raising.raises_one, name, *args, **options)
        assert type(error) is getattr(raising, name), shown
        assert str(error) == words
        assert {key: getattr(error, key) for key in attributes} == attributes
        assert "    raise globals()[name](*args, **options)" in shown


def test_what_cannot_be_had_here_is_a_remote_error_with_type_words_and_traceback(executor: Executor) -> None:
    for name in ("Locked", "LiesAboutItsType", "IsNoException"):
        error, shown = raised(executor, raising.raises_one, name, "the original words")
        assert type(error) is RemoteError
        assert str(error) == f"raising.{name}: the original words"
        assert "in raises_one\n" in shown


def test_words_that_were_lost_on_the_way_are_a_note(executor: Executor) -> None:
    error, _ = raised(executor, raising.raises_one, "ForgetsItsWords", "the original words")
    assert type(error) is raising.ForgetsItsWords
    assert error.__notes__ == ["On the worker it was: raising.ForgetsItsWords: the original words"]
    error, shown = raised(executor, raising.raises_one, "CannotBeSaid")
    assert type(error) is raising.CannotBeSaid
    assert "in raises_one\n" in shown


def test_what_would_end_who_unpickles_it_is_a_broken_pool_of_that_call_alone(executor: Executor) -> None:
    error, _ = raised(executor, abs, raising.EndsWhoReadsIt())
    assert isinstance(error, BrokenProcessPool)
    assert "would end the worker that unpickles them: SystemExit(3)" in str(error)
    future = executor.submit(raising.EndsWhoReadsIt)
    with pytest.raises(BrokenProcessPool, match=r"would end the program that unpickles it: SystemExit\(3\)"):
        future.result(PATIENCE)
    assert executor.submit(abs, -1).result(PATIENCE) == 1


def test_those_of_python_arrive(executor: Executor) -> None:
    for sent in (
        SystemExit("a text"),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(4),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        FileNotFoundError(2, "none", "/there"),
        ImportError("none", name="it"),
        ExceptionGroup("two", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])]),
    ):
        error, _ = raised(executor, raising.raises, sent)
        assert repr(error) == repr(sent)
        assert str(error) == str(sent)
    error, _ = raised(executor, sys.exit, "a text")
    assert isinstance(error, SystemExit)
    assert error.code == "a text"


def test_causes_and_notes_are_shown(executor: Executor) -> None:
    error, shown = raised(executor, raising.raises_another_for, "first")
    assert isinstance(error, ValueError)
    assert error.__notes__ == ["a note"]
    assert shown.index("KeyError: 'first'") < shown.index("was the direct cause of") < shown.index("ValueError: second")


def test_an_exception_of_a_module_that_only_the_worker_has(executor: Executor) -> None:
    def makes_a_module() -> None:
        import sys
        import types

        module = types.ModuleType("only_there")
        exec("class Ours(Exception): pass", module.__dict__)
        sys.modules["only_there"] = module
        raise module.Ours("boo")

    error, shown = raised(executor, makes_a_module)
    assert type(error) is RemoteError
    assert str(error) == "only_there.Ours: boo"
    assert 'raise module.Ours("boo")' in shown


def test_a_module_that_was_imported_later_is_named(executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_later.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    later = importlib.import_module("imported_later")
    monkeypatch.delitem(sys.modules, "imported_later")
    monkeypatch.setitem(sys.modules, "imported_later", later)
    error, _ = raised(executor, later.f)
    assert isinstance(error, ModuleNotFoundError)
    assert error.__notes__[0].startswith('"imported_later" is imported here, and the workers do not have it')


@pytest.mark.parametrize("without_names", [False, True])
def test_the_lines_of_the_callers_files_are_in_the_traceback(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, *, without_names: bool
) -> None:
    """The worker has no file of that name, as on another machine; and cloudpickle 3.1.3 does not even say the name."""
    if without_names:
        monkeypatch.setitem(cloudpickle.Pickler._dispatch_table, CodeType, _reduced_without_names)
    source = "def outer():\n    return [inner(n) for n in range(3)]\n\n\ndef inner(n):\n    raise KeyError(n)  # this line\n"
    name = "/nowhere/script.py"
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
    main = ModuleType("__main__")
    exec(compile(source, name, "exec"), main.__dict__)
    _, shown = raised(executor, main.outer)
    assert f'File "{name}", line 6, in inner\n    raise KeyError(n)  # this line' in shown


_REDUCED = cloudpickle.Pickler._dispatch_table[CodeType]


def _reduced_without_names(code: CodeType) -> Any:
    make, args = _REDUCED(code)
    return make, tuple("<dynamic-code>" if one == code.co_filename else one for one in args)


def test_exceptions_are_arguments_of_a_program_that_has_imported_distributed(lab: LabProcess) -> None:
    """It makes tblib the way of all exceptions, and workers without packages do not have it."""
    text = (
        "import carrel, distributed\n"
        "with carrel.Executor(1, requirements=[], modules=[], memory='256M') as lab:\n"
        "    print(lab.submit(repr, ValueError('this')).result())\n"
    )
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, done.stderr) == ("ValueError('this')\n", "")
