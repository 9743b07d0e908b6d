"""Executors that are ended, twice or in odd places, and what the lab, a proxy or the system refuses: no future waits for ever."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from called import begins_and_waits, begun

from carrel import Client, Executor
from carrel.core.domain.errors import Denied, Invalid, Unauthenticated
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess

Opens = Callable[..., Executor]


@pytest.fixture
def opens(client: Client) -> Iterator[Opens]:
    opened: list[Executor] = []

    def opens(**more: Any) -> Executor:
        options = {"requirements": [], "modules": ["called"], "cpus": 1, "memory": "256M", "client": client} | more
        options["modules"] = [sys.modules[name] for name in options["modules"]]
        opened.append(Executor(1, **options))
        return opened[-1]

    yield opens
    for executor in opened:
        for worker in client.pool(executor.pool_id).workers:
            client.cancel(worker.job_id)
        executor.shutdown(cancel_futures=True)


def program(lab: LabProcess, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that uses the lab as the documentation says, without a client of its own."""
    text = "import carrel\n" + textwrap.dedent(text).replace(
        "Executor(1", "Executor(1, requirements=[], modules=[], memory='256M'"
    )
    every = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token, **environment}
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env=every, timeout=PATIENCE)


# ---- ending


def test_shutdown_may_be_called_again_in_every_way(lab: LabProcess) -> None:
    done = program(
        lab,
        """
        with carrel.Executor(1) as lab:
            future = lab.submit(pow, 2, 3)
            lab.shutdown(wait=False)
            lab.shutdown(cancel_futures=True)
            lab.shutdown()
            print(future.cancelled() or future.result(0))
        lab.shutdown(wait=False, cancel_futures=True)
        try:
            lab.submit(pow, 2, 3)
        except RuntimeError as error:
            print(error)
        try:
            with carrel.Executor(1) as lab:
                lab.shutdown()
                raise KeyError("of the block")
        except KeyError as error:
            print(error, error.__context__)
        """,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["cannot schedule new futures after shutdown", "'of the block' None"]
    assert done.stdout.splitlines()[0] in ("8", "True")


def test_a_client_that_is_closed_before_its_executor_replaces_no_exception(lab: LabProcess) -> None:
    with pytest.raises(KeyError, match="of the block"), Client(url=lab.url, token=lab.token) as client:
        with Executor(1, requirements=[], modules=[], memory="256M", client=client) as executor:
            executor.submit(pow, 2, 3).result(PATIENCE)
            client.close()
            raise KeyError("of the block")


def test_a_callback_may_shut_the_executor(opens: Opens) -> None:
    executor, ended = opens(), threading.Event()

    def ends(_: Any) -> None:
        executor.shutdown(wait=True)
        ended.set()

    executor.submit(pow, 2, 3).add_done_callback(ends)
    assert ended.wait(PATIENCE)


def test_at_the_end_of_a_program(lab: LabProcess, client: Client) -> None:
    """A handler may shut it; one that comes after Carrel's own is told that a call would never be sent."""
    done = program(
        lab,
        """
        import atexit

        def late():
            try:
                lab.submit(pow, 2, 5)
            except RuntimeError as error:
                print(error)
            lab.shutdown()

        atexit.register(late)
        lab = carrel.Executor(1)
        print(lab.pool_id)
        lab.submit(pow, 2, 4)
        """,
    )
    pool, *said = done.stdout.splitlines()
    assert (said, done.stderr) == (["cannot schedule new futures after interpreter shutdown"], "")
    assert client.pool(int(pool)).closed_at is not None
    wait_until(lambda: client.pool(int(pool)).calls == {"COMPLETED": 1})


# ---- refusals


class Proxy:
    """Passes connections on to the lab, until it cuts them and refuses all requests."""

    def __init__(self, lab: LabProcess) -> None:
        self.refuses = False
        self._open: list[socket.socket] = []
        self._lab = urlsplit(lab.url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def refuse(self) -> None:
        self.refuses = True
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((self._lab.hostname, self._lab.port))
                self._open += [near, far]
                threading.Thread(target=self._pass, args=(near, far), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.refuses:
                    source.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\nConnection: close\r\n\r\nForbidden")
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.refuse()
        self._listener.close()
        for one in self._open:
            one.close()


@pytest.fixture
def proxy(lab: LabProcess) -> Iterator[Proxy]:
    proxy = Proxy(lab)
    yield proxy
    proxy.close()


def test_after_a_proxys_refusal_it_works_again(lab: LabProcess, proxy: Proxy, client: Client, flags: Path) -> None:
    with Client(url=proxy.url, token=lab.token) as through:
        options: dict[str, Any] = {"requirements": [], "modules": [sys.modules["called"]], "memory": "256M"}
        with Executor(1, client=through, **options) as executor:
            running = executor.submit(begins_and_waits, str(flags))
            wait_until(lambda: begun(flags))
            proxy.refuse()
            refused = executor.submit(pow, 2, 4)
            with pytest.raises(Denied, match="answered 403"):
                refused.result(PATIENCE)
            with pytest.raises(Denied, match=r"The call goes on in the lab: carrel.Executor.future\(\d+\) finds it again"):
                running.result(PATIENCE)
            proxy.refuses = False
            (flags / "go").touch()
            assert executor.submit(pow, 2, 5).result(PATIENCE) == 32
            assert Executor.future(running.call_id, client=client).result(PATIENCE) == "done"


def test_where_no_thread_can_be_started_the_submit_says_so(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = opens()

    def cannot(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        with pytest.raises(BrokenProcessPool, match="cannot be sent: can't start new thread"):
            executor.submit(pow, 2, 3)
    assert executor.submit(pow, 2, 4).result(PATIENCE) == 16


def test_a_forked_process_is_told_and_leaves_the_pool_alone(lab: LabProcess) -> None:
    done = program(
        lab,
        """
        import os, sys

        with carrel.Executor(1) as lab:
            future = lab.submit(pow, 2, 3)
            child = os.fork()
            if child == 0:
                for use in (lambda: lab.submit(pow, 2, 4), lambda: lab.submit(pow, 2, 4).result(), future.result):
                    try:
                        use()
                    except RuntimeError as error:
                        print("Make a carrel.Executor here" in str(error), flush=True)
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
            print(future.result(), lab.submit(pow, 2, 5).result())
        """,
    )
    assert (done.stdout.split(), done.stderr) == (["True", "True", "True", "8", "32"], "")


# ---- said before, or at once


def test_options_and_tokens_that_are_wrong_are_named(lab: LabProcess) -> None:
    with pytest.raises(Invalid, match=r'"gpu" is no option of carrel.Executor. Did you mean "gpus"\?'):
        Executor(1, gpu=1)
    with pytest.raises(Invalid, match="cpus: "):
        Executor(1, cpus="many")  # type: ignore[arg-type]
    with Client(url=lab.url, token="carrel_of_nobody") as client, pytest.raises(Unauthenticated, match="token"):
        Executor(1, requirements=[], modules=[], client=client)


def test_what_holds_the_executor_says_so(opens: Opens) -> None:
    class Study:
        def __init__(self, lab: Executor) -> None:
            self.lab = lab

        def step(self) -> int:
            return 1

    with pytest.raises(TypeError, match="A carrel.Executor cannot travel"):
        opens().submit(Study(opens()).step).result(0)


def test_a_coroutine_function_is_run(opens: Opens) -> None:
    async def waits(number: int) -> int:
        import asyncio

        await asyncio.sleep(0)
        return number + 1

    assert opens().submit(waits, 1).result(PATIENCE) == 2


def test_calls_make_executors_and_name_carrel(lab: LabProcess, tmp_path: Path) -> None:
    """A project of two files, as one writes it: the module imports carrel, and so does the function."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
            import carrel

            OPTIONS = {"requirements": [], "memory": "256M"}


            def version(x):
                return x, carrel.__version__


            def inside(number):
                with carrel.Executor(1, **OPTIONS) as lab:
                    return lab.submit(version, number).result()


            def run():
                with carrel.Executor(1, **OPTIONS) as lab:
                    return lab.submit(version, 1).result(), lab.submit(inside, 2).result()
        """)
    )
    done = program(lab, "import mine\nprint(mine.run())\n", PYTHONPATH=str(tmp_path))
    assert done.stderr == ""
    assert done.stdout == "((1, '0.1.0'), (2, '0.1.0'))\n"


def test_after_a_suspension_it_works_again(lab: LabProcess, client: Client, flags: Path) -> None:
    added = client.add_user("suspended", without_isolation=True)
    options: dict[str, Any] = {"requirements": [], "modules": [sys.modules["called"]], "memory": "256M"}
    with Client(url=lab.url, token=added.token) as theirs, Executor(1, client=theirs, **options) as executor:
        running = executor.submit(begins_and_waits, str(flags))
        wait_until(lambda: begun(flags))
        client.suspend_user("suspended")
        with pytest.raises(Denied, match=r"The call goes on in the lab: carrel.Executor.future"):
            running.result(PATIENCE)
        with pytest.raises(Denied):
            executor.submit(pow, 2, 4).result(PATIENCE)
        client.resume_user("suspended")
        (flags / "go").touch()
        assert executor.submit(pow, 2, 5).result(PATIENCE) == 32
        assert Executor.future(running.call_id, client=theirs).result(PATIENCE) == "done"


def test_an_executor_that_nothing_names_lets_its_pool_go(lab: LabProcess, client: Client) -> None:
    executor = Executor(1, requirements=[], modules=[], memory="256M", client=client, min_workers=1)
    future = executor.submit(pow, 2, 3)
    pool, seen = executor.pool_id, weakref.ref(executor)
    del executor
    assert future.result(PATIENCE) == 8  # as long as a future names it, it is there
    del future
    wait_until(lambda: gc.collect() is not None and seen() is None)
    wait_until(lambda: client.pool(pool).closed_at is not None and not client.pool(pool).workers)


def test_a_call_goes_on_after_its_token_was_revoked_and_says_so(lab: LabProcess, client: Client, flags: Path) -> None:
    added = client.add_user("revoked", without_isolation=True)
    options: dict[str, Any] = {"requirements": [], "modules": [sys.modules["called"]], "memory": "256M"}
    with Client(url=lab.url, token=added.token) as theirs:
        own = theirs.create_token("for the program")
        with Client(url=lab.url, token=own.token) as short, Executor(1, client=short, **options) as executor:
            running = executor.submit(begins_and_waits, str(flags))
            wait_until(lambda: begun(flags))
            short.revoke_token()
            with pytest.raises(Unauthenticated, match=r"The call goes on in the lab: carrel.Executor.future"):
                running.result(PATIENCE)
        (flags / "go").touch()
        assert Executor.future(running.call_id, client=theirs).result(PATIENCE) == "done"


def test_no_thread_follows_a_pool_that_is_over(opens: Opens) -> None:
    before = set(threading.enumerate())
    for wait in (True, False):
        executor = opens()
        assert executor.submit(pow, 2, 3).result(PATIENCE) == 8
        executor.shutdown(wait=wait)
    # Sooner than the lab says that it is still there, after which they used to end.
    mine = [thread for thread in threading.enumerate() if thread not in before and thread.name == "carrel results"]
    wait_until(lambda: not any(thread.is_alive() for thread in mine), timeout=10)
