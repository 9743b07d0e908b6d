"""Terminal escapes in what jobs and others have written are shown on a terminal, and not obeyed."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
from pathlib import Path

import pytest
from command_line import CARREL, CommandLine, script

from carrel.cli.screen import print_csv
from carrel.cli.terminal import Terminal
from carrel.client import Client
from carrel.core.domain.control_characters import visible
from carrel.core.spool.log_lines import WholeLines
from carrel.lab.server.log import LabLog
from carrel.testing.waiting import PATIENCE

#: Title, clipboard, clear, a question that is answered as if it were typed, another character set, C1, and text turned round.
HOSTILE = "\x1b]0;root@lab\x07\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2J\x1b[H\x1b[6n\x1bP+q544e\x1b\\\x1b(0\x9b31m\x0e\x08\x7f\u202eabc"
#: What a command may send: its own line that changes, and colours.
ALLOWED = re.compile(r"\r?\x1b\[2K|\x1b\[[0-9;:]*m|[\r\n\t]")
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def on_a_terminal(carrel: CommandLine, *words: str) -> str:
    """What a command sends to a terminal, to its standard output and standard error."""
    ours, theirs = os.openpty()
    environment = {**carrel.environment(), "TERM": "xterm-256color"}
    process = subprocess.Popen([*CARREL, *words], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    sent = b""
    try:
        while piece := os.read(ours, 65536):
            sent += piece
    except OSError:  # EIO: the last who had the terminal open has ended
        pass
    os.close(ours)
    process.wait(PATIENCE)
    return sent.decode()


def obeyed(sent: str) -> list[str]:
    return CONTROL.findall(ALLOWED.sub("", sent))


@pytest.mark.gate
def test_no_command_passes_on_what_a_job_tells_the_terminal(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    (tmp_path / "hostile").write_text(f"{HOSTILE}\n\x1b[1;32mgreen\x1b[0m ä\n")
    path = script(tmp_path / "task", f'cat "{tmp_path}/hostile"; echo x > "outputs/$(printf "a\\033]0;b")"\nexit 3\n')
    sent = on_a_terminal(carrel, "run", path)
    assert not obeyed(sent)
    assert "^[]52;c;cm0gLXJmIH4=^G^[[2J^[[H^[[6n" in sent
    assert "\x1b[1;32mgreen\x1b[0m ä" in sent
    number = str(next(iter(client.jobs("all"))).id)
    for words in (("logs", number), ("logs", "-f", number), ("show", number), ("ps", "--all"), ("outputs", number, "--list")):
        sent = on_a_terminal(carrel, *words)
        assert sent.strip()
        assert not obeyed(sent), words
    # Who wants the bytes has them.
    piped = carrel("logs", number)
    assert piped.out.startswith((tmp_path / "hostile").read_text())


def terminal() -> tuple[Terminal, io.BytesIO]:
    bytes_sent = io.BytesIO()
    return Terminal(io.TextIOWrapper(bytes_sent, encoding="utf-8", write_through=True, newline="")), bytes_sent


@pytest.mark.quick
def test_a_log_that_comes_in_pieces_is_shown_as_in_one() -> None:
    text = f"{HOSTILE}\r\n\x1b[38;5;1mred\x1b[0m ä\t€\x1b[0m\x1b".encode()
    whole, sent = terminal()
    whole.buffer.write(text)
    whole.buffer.finish()
    for size in (1, 2, 3, 7):
        pieces, bytes_sent = terminal()
        for at in range(0, len(text), size):
            pieces.buffer.write(text[at : at + size])
        pieces.buffer.finish()
        assert bytes_sent.getvalue().replace(b"\x1b[0m", b"") == sent.getvalue().replace(b"\x1b[0m", b"")
    shown = sent.getvalue().decode()
    assert not obeyed(shown)
    assert shown.endswith("\x1b[38;5;1mred\x1b[0m ä\t€\x1b[0m^[")


@pytest.mark.quick
def test_a_style_that_a_log_leaves_ends_with_it() -> None:
    out, sent = terminal()
    out.buffer.write(b"\x1b[8mhidden\n")
    assert sent.getvalue() == b"\x1b[8mhidden\n\x1b[0m"


@pytest.mark.quick
def test_words_have_no_colours_but_our_own() -> None:
    out, sent = terminal()
    print("\x1b[32mCOMPLETED\x1b[0m  \x1b[8mx\x1b[2K", file=out)  # type: ignore[call-overload]
    out.writelines(["\x1b[2J", "\n"])
    assert sent.getvalue() == b"\x1b[32mCOMPLETED\x1b[0m  ^[[8mx^[[2K\n^[[2J\n"


@pytest.mark.quick
def test_signs_of_control_characters() -> None:
    assert visible("a\tb\r\n\x1b\x00\x7f\x85\u202ez é😀") == "a\tb\r\n^[^@^?\\x85\\u202ez é😀"
    assert visible("a\nb", kept="\t") == "a^Jb"


@pytest.mark.quick
def test_nobody_forges_a_line_of_the_labs_log(tmp_path: Path) -> None:
    forged = "x\n2026-01-01 00:00:00,000 INFO carrel.users: root made mallory admin.\x1b[2J\u2028\x85"
    log = LabLog(tmp_path / "server.log")
    logger = logging.Logger("carrel.test")
    logger.addHandler(log)
    logger.warning("The job %s is odd.", forged)
    try:
        raise ValueError(forged)
    except ValueError:
        logger.exception("A job failed: %s", forged)
    log.close()
    lines = (tmp_path / "server.log").read_text(encoding="utf-8").split("\n")
    assert [line.split(" ")[2] for line in lines if line[:1].isdigit()] == ["WARNING", "ERROR"]
    assert not CONTROL.search("".join(lines))
    assert "x^J2026-01-01" in lines[0]
    assert isinstance(log.formatter, WholeLines)


@pytest.mark.quick
def test_no_text_in_csv_is_a_formula(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of metrics and packages are chosen by whoever runs the job, and a manager opens the file in a spreadsheet."""
    print_csv(("name", "value"), [['=HYPERLINK("http://x")', -1.5], ["@a", "+1"], ["a=b", ""], ["\t=1", None], ["1.5", 3]])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name,value", '"\'=HYPERLINK(""http://x"")",-1.5', "'@a,'+1", "a=b,", "'\t=1,", "1.5,3"]


def test_colours_are_for_terminals_that_want_them(carrel: CommandLine, tmp_path: Path) -> None:
    said = on_a_terminal(carrel, "run", script(tmp_path / "code", "echo shown\n"), "--name", "n" * 30)
    assert "\x1b[32mCOMPLETED\x1b[0m" in said
    assert "shown\r\n" in said
    assert "\x1b" not in on_a_terminal(CommandLine({**carrel.variables, "NO_COLOR": "1"}), "ps")
