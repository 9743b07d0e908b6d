"""The library's reader of JSON understands what Python's writes, and refuses what Python's refuses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from residency_rig import SOURCES

#: Neither half characters nor NUL, which no text of C can hold.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
wholes = st.integers(-(2**62), 2**62)
scalars = st.none() | st.booleans() | wholes | st.floats(allow_nan=False, allow_infinity=False) | texts
values = (
    scalars
    | st.lists(texts)
    | st.lists(wholes)
    | st.recursive(scalars, lambda deeper: st.lists(deeper) | st.dictionaries(texts, deeper))
)
names = st.sampled_from(["a", "op", "id", "sizes"])


class Reader:
    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, line: bytes, kind: str, name: str) -> list[bytes]:
        stdin, stdout = self.process.stdin, self.process.stdout
        stdin.write(line + b"\n" + f"{kind} {name}\n".encode())
        stdin.flush()
        found = [stdout.readline().strip()]
        while kind in "li" and found[-1] not in (b"end", b"bad"):
            found.append(stdout.readline().strip())
        return found


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    target = tmp_path_factory.mktemp("json") / "reader"
    files = [Path(__file__).with_name("json_main.c"), SOURCES / "json.c", SOURCES / "json_write.c"]
    flags = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["cc", "-std=c11", "-O1", *flags, f"-I{SOURCES}", "-o", target, *files], check=True)
    made = Reader(target)
    yield made
    made.process.communicate()
    assert made.process.returncode == 0


def answers(message: dict[str, Any], kind: str, name: str) -> list[bytes]:
    value = message.get(name)
    if kind == "t":
        return [value.encode().hex().encode()] if isinstance(value, str) else [b"no"]
    if kind == "b":
        return [b"true" if value else b"false"] if isinstance(value, bool) else [b"no"]
    if kind == "w":
        return [str(value).encode()] if isinstance(value, int) and not isinstance(value, bool) else [b"no"]
    elements = value if isinstance(value, list) else []
    found = []
    for one in elements:
        if not isinstance(one, str if kind == "l" else int) or isinstance(one, bool):
            break
        found.append(one.encode().hex().encode() if isinstance(one, str) else str(one).encode())
    return [*found, b"end"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names | texts, values), names, st.sampled_from("tbwli"), st.booleans(), st.sampled_from([None, 1]))
def test_it_reads_what_python_writes(
    reader: Reader, message: dict[str, Any], name: str, kind: str, plain: bool, indent: int | None
) -> None:
    line = json.dumps(message, ensure_ascii=plain, indent=indent).replace("\n", " ").encode()
    assert reader.ask(line, kind, name) == answers(message, kind, name)


@given(st.floats(allow_nan=False, allow_infinity=False) | wholes)
def test_numbers(reader: Reader, number: float) -> None:
    assert float(reader.ask(json.dumps({"a": number}).encode(), "n", "a")[0]) == float(number)


def refused(text: str) -> bool:
    def constant(word: str) -> Any:
        raise ValueError(word)

    try:
        return not isinstance(json.loads(text, parse_constant=constant), dict)
    except (ValueError, RecursionError):
        return True


@given(st.text(st.sampled_from(list('{}[]",:\\u0dealsrtfn19.-+eE \t/')), max_size=30))
@example('{"a":01}')
@example('{"a":1.}')
@example('{"a":"\\ud83d\\ude00"}')
@example('{"a":"\\u12"}')
@example('{"a":"x"} {')
@example("{")
@example('{"a":[}')
def test_it_refuses_what_python_refuses(reader: Reader, text: str) -> None:
    for line in (text, '{"a":' + text + "}"):
        assert (reader.ask(line.encode(), "b", "never") == [b"bad"]) == refused(line), line


def test_what_is_nested_too_deep_is_refused(reader: Reader) -> None:
    assert reader.ask(b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}", "b", "a") == [b"bad"]


def test_a_line_of_any_bytes(reader: Reader) -> None:
    for number in range(256):
        line = b'{"a": "' + bytes([number]) * 3 + b'"}'
        if number not in (0, 10):
            assert reader.ask(line, "b", "a")[0] in (b"bad", b"no")
