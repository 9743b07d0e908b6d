"""Large arguments and results: on the lab's machine they go through files, elsewhere through HTTP; the values are the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import PickleBuffer
from typing import Any

import called
import pytest
from called import begun

from carrel import Client, Executor
from carrel.client import body_files
from carrel.client.executor.future import Future
from carrel.core.domain.errors import Conflict, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess, start_lab
from support.namespaces import why_no_namespaces

MIB = 1024 * 1024
#: So large that it is mapped; and too small for that.
SIZES = {"mapped": 65 * MIB, "read": 3 * MIB}
Opens = Callable[..., Executor]
OPTIONS: dict[str, Any] = {"requirements": [], "modules": [called], "cpus": 1, "memory": "1G"}


@pytest.fixture
def opens(client: Client) -> Iterator[Opens]:
    opened: list[Executor] = []

    def opens(**more: Any) -> Executor:
        opened.append(Executor(1, client=client, **OPTIONS, **more))
        return opened[-1]

    yield opens
    for executor in opened:
        executor.shutdown(cancel_futures=True)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has gone through a file here: "read" and "write", in order."""
    seen: list[str] = []
    read, write = body_files.read, body_files.write

    def reads(offer: Any) -> Any:
        found = read(offer)
        seen.append("read")
        return found

    def writes(offer: Any, parts: Any) -> Any:
        found = write(offer, parts)
        seen.append("write")
        return found

    monkeypatch.setattr(body_files, "read", reads)
    monkeypatch.setattr(body_files, "write", writes)
    return seen


def a_buffer(size: int) -> bytearray:
    return bytearray(os.urandom(MIB)) * (size // MIB)


@pytest.mark.gate
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_values_go_through_files_both_ways(opens: Opens, ways: list[str], size: int) -> None:
    buffer = a_buffer(size)
    buffer[0] = 1
    future = opens().submit(called.changed, PickleBuffer(buffer))
    found = future.result(PATIENCE)
    assert ways == ["write", "read"]
    assert (buffer[0], found[0], found[1:] == memoryview(buffer)[1:]) == (1, 255, True)
    # It can be written here, too, and the lab's own stays as it is.
    found[0] = 7
    again = Executor.future(future.call_id, client=future.client).result(PATIENCE)
    assert (again[0], again[1:] == found[1:]) == (255, True)


def test_many_small_buffers_and_empty_ones(opens: Opens, ways: list[str]) -> None:
    buffers = [bytearray([number % 256]) * (number % 1500) for number in range(3000)]
    sent = [PickleBuffer(one) for one in buffers]
    found = opens().submit(lambda all_of_them: [PickleBuffer(one) for one in all_of_them], sent).result(PATIENCE)
    assert [bytes(one) for one in found] == buffers
    assert ways == ["write", "read"]


def test_small_values_do_not(opens: Opens, ways: list[str]) -> None:
    assert len(opens().submit(bytes, 500_000).result(PATIENCE)) == 500_000
    assert ways == []


def test_where_the_file_cannot_be_had_the_same_values_come_by_http(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_here(*_: Any) -> Any:
        raise body_files.NotHere("as on another machine")

    monkeypatch.setattr(body_files, "read", not_here)
    monkeypatch.setattr(body_files, "write", not_here)
    buffer = a_buffer(SIZES["read"])
    found = opens().submit(called.changed, PickleBuffer(buffer)).result(PATIENCE)
    assert (found[0], found[1:] == memoryview(buffer)[1:]) == (255, True)


def test_a_large_result_is_an_argument(opens: Opens) -> None:
    executor = opens()
    made = executor.submit(called.changed, PickleBuffer(a_buffer(SIZES["read"])))
    assert executor.submit(lambda buffer: (len(buffer), buffer[0]), made).result(PATIENCE) == (SIZES["read"], 255)


def test_large_results_are_kept_for_equal_calls(opens: Opens) -> None:
    executor = opens(cache=True)
    first, second = (executor.submit(bytes, SIZES["read"]) for _ in range(2))
    assert first.result(PATIENCE) == second.result(PATIENCE)
    assert second.cached


def test_a_small_array_may_be_written_to_right_after_it_was_submitted(opens: Opens) -> None:
    executor, buffer, futures = opens(), bytearray(1000), []
    for number in range(50):
        buffer[0] = number
        futures.append(executor.submit(bytes, PickleBuffer(buffer)))
    assert [future.result(PATIENCE)[0] for future in futures] == list(range(50))


def lying(client: Client) -> int:
    """Bytes that the caller's calls have in files of the lab's."""
    return client.storage().mine.calls


@pytest.mark.gate
def test_a_large_result_goes_when_its_program_has_had_it_and_lets_go_of_it(opens: Opens, client: Client) -> None:
    executor = opens()
    before = lying(client)
    future = executor.submit(bytes, SIZES["read"])
    number = future.call_id
    executor.submit(abs, 1).result(PATIENCE)
    assert lying(client) >= before + SIZES["read"]  # it has not had it yet
    value = future.result(PATIENCE)
    assert executor.submit(len, future).result(PATIENCE) == len(value)
    assert len(Executor.future(number, client=client).result(PATIENCE)) == SIZES["read"]  # as after a kill: it may look again
    del future
    executor.submit(abs, 1).result(PATIENCE)  # with what comes next from the lab
    wait_until(lambda: lying(client) == before)
    with pytest.raises(NotFound, match=rf"result of call {number} \(3M\) is not kept any more.*submit_cached"):
        Executor.future(number, client=client).result(PATIENCE)
    assert client.call(number).state == "COMPLETED"
    gone: Future[Any] = Future("bytes", lambda _: False, lambda: None)
    gone.client, gone._number = client, number
    with pytest.raises(Conflict, match=r"Pass the value itself"):
        executor.submit(len, gone).result(PATIENCE)


def test_a_large_result_stays_that_its_program_has_not_asked_for_or_another_call_needs(
    opens: Opens, client: Client, flags: Path
) -> None:
    executor = opens()
    before = lying(client)
    executor.submit(called.begins_and_waits, str(flags))
    unseen = executor.submit(bytes, SIZES["read"]).call_id
    needed = executor.submit(bytes, 2 * SIZES["read"])
    (flags / "go").touch()
    needed.result(PATIENCE)
    (flags / "go").unlink()
    executor.submit(called.begins_and_waits, str(flags))
    waits = executor.submit(len, needed)
    assert waits.call_id
    del needed
    executor._receiver.give_up()
    (flags / "go").touch()
    assert waits.result(PATIENCE) == 2 * SIZES["read"]
    assert lying(client) >= before + 3 * SIZES["read"]
    assert len(Executor.future(unseen, client=client).result(PATIENCE)) == SIZES["read"]


def test_large_results_that_were_had_go_with_their_executor(opens: Opens, client: Client) -> None:
    before = lying(client)
    with Executor(1, client=client, **OPTIONS) as executor:
        had = executor.submit(bytes, SIZES["read"])
        assert len(had.result(PATIENCE)) == SIZES["read"]
        assert lying(client) > before
    assert lying(client) == before


def test_arrays_are_aligned_and_writable(opens: Opens) -> None:
    numpy = pytest.importorskip("numpy")
    from carrel.client.executor import pickling

    array = numpy.arange(1000.0)
    (same,) = pickling.load(bytearray(b"".join(bytes(part) for part in pickling.dump([array]))))
    assert (same == array).all()
    assert (same.flags.aligned, same.flags.writeable) == (True, True)


def test_a_worker_that_is_killed_leaves_nothing(opens: Opens, lab: LabProcess, flags: Path) -> None:
    buffer = a_buffer(SIZES["mapped"])
    executor = opens(retries=1)
    future = executor.submit(called.large_with_its_process, str(flags), PickleBuffer(buffer))
    wait_until(lambda: len(begun(flags)) == 1)
    before = set((lab.home / "calls").iterdir())
    os.kill(begun(flags)[0], signal.SIGKILL)
    wait_until(lambda: len(begun(flags)) == 2)
    (flags / "go").touch()
    assert future.result(PATIENCE) == buffer
    # One more: the result.
    assert len(set((lab.home / "calls").iterdir()) - before) == 1


def test_a_server_that_is_killed_leaves_nothing_and_loses_nothing(tmp_path: Path, flags: Path) -> None:
    home = tmp_path / "home"
    lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
    buffer = a_buffer(SIZES["mapped"])
    with Client(home=home) as client, Executor(1, client=client, **OPTIONS) as executor:
        future = executor.submit(called.large_with_its_process, str(flags), PickleBuffer(buffer))
        wait_until(lambda: len(begun(flags)) == 1)
        lab.kill()
        (flags / "go").touch()  # the worker writes its result, or tries to, while there is no lab
        lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
        assert future.result(PATIENCE) == buffer
        assert len(begun(flags)) == 1
        again = executor.submit(called.changed, PickleBuffer(buffer)).result(PATIENCE)
        assert again[1:] == memoryview(buffer)[1:]
        # The results of two calls, and nothing else.
        assert len(list((home / "calls").iterdir())) == 2
    lab.end_jobs()
    lab.stop()


def test_a_worker_behind_walls_has_files_of_its_own_calls(tmp_path: Path, ways: list[str]) -> None:
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('isolation = "kernel"\njob_network = "loopback"\ntracking = false\n')
    lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
    with Client(home=home) as client, Executor(1, client=client, **OPTIONS) as executor:
        buffers = [PickleBuffer(a_buffer(SIZES["mapped"]))]
        sizes, mapped = executor.submit(called.sizes_and_way, buffers).result(PATIENCE)
        assert (sizes, mapped) == ([SIZES["mapped"]], 1)

        def look(directory: str) -> str:
            try:
                return str(list(Path(directory).iterdir()))
            except OSError as error:
                return type(error).__name__

        assert executor.submit(look, str(home / "calls")).result(PATIENCE) in ("[]", "FileNotFoundError", "PermissionError")
        found = executor.submit(called.changed, buffers[0]).result(PATIENCE)
        assert (len(found), ways) == (SIZES["mapped"], ["write", "write", "read"])
    lab.end_jobs()
    lab.stop()
