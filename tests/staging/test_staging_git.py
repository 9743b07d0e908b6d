"""Inputs from git: the real program, over a real server (git-http-backend(1)); among the repositories are hostile ones."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from carrel.core.domain.launch import InputsReady
from carrel.core.domain.task import InputSpec
from carrel.node.staging.cache import InputCache, open_cache
from carrel.node.staging.download import Most, News
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.fetching import Closed, check_uri, fetch, stage_in, stage_inputs
from carrel.node.staging.git_address import read_address
from carrel.node.staging.git_program import Git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


@dataclass
class Host:
    """Repositories behind a web server, and what was asked of it."""

    root: Path
    url: str = ""
    #: "user:password" that it wants; "": none.
    wanted: str = ""
    #: False: it serves files alone, as a server without git does (gitprotocol-http(5)).
    smart: bool = True
    asked: list[str] = field(default_factory=list)

    def git(self, *arguments: str, repository: str = "study.git", stdin: bytes = b"", **variables: str) -> str:
        known = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(self.root)}
        for kind in ("AUTHOR", "COMMITTER"):
            known |= {f"GIT_{kind}_NAME": "x", f"GIT_{kind}_EMAIL": "x@example.org", f"GIT_{kind}_DATE": "2026-01-01T00:00:00Z"}
        command = ["git", f"--git-dir={self.root / repository}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, env={**os.environ, **known, **variables}, check=True)
        return done.stdout.decode().strip()

    def tree(self, entries: dict[str, tuple[str, str]], repository: str = "study.git") -> str:
        """Write a tree as it is said, also what git itself would never write."""
        text = b"".join(
            f"{mode.lstrip('0')} {name}".encode() + b"\0" + bytes.fromhex(object) for name, (mode, object) in entries.items()
        )
        return self.git("hash-object", "-t", "tree", "--literally", "-w", "--stdin", stdin=text, repository=repository)

    def blob(self, text: str) -> str:
        return self.git("hash-object", "-w", "--stdin", stdin=text.encode())

    def commit(self, entries: dict[str, tuple[str, str]], branch: str = "main") -> str:
        commit = self.git("commit-tree", self.tree(entries), "-m", "x")
        self.git("update-ref", f"refs/heads/{branch}", commit)
        self.git("update-server-info")
        return commit

    def at(self, rest: str = "", repository: str = "study.git") -> str:
        return f"git+{self.url}/{repository}{rest}"


class Handler(BaseHTTPRequestHandler):
    host: Host

    def do_GET(self) -> None:
        host, parts = self.host, urlsplit(self.path)
        host.asked.append(f"{self.command} {self.path}")
        said = self.headers.get("Authorization", "")
        if host.wanted and base64.b64decode(said.removeprefix("Basic ")).decode() != host.wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if not host.smart:
            self._file(host.root / parts.path.lstrip("/"))
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        variables = {
            **{"PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(host.root), "GIT_HTTP_EXPORT_ALL": "1"},
            **{"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory"},
            **{"GIT_CONFIG_VALUE_0": "*", "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""), "PATH_INFO": parts.path},
            **{"QUERY_STRING": parts.query, "REQUEST_METHOD": self.command, "REMOTE_USER": "x", "REMOTE_ADDR": "127.0.0.1"},
            **{"CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body))},
            **{"HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", "")},
        }  # fmt: skip
        done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=variables, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def _file(self, path: Path) -> None:
        content = path.read_bytes() if path.is_file() else b""
        self.send_response(200 if path.is_file() else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "host")
    host.git("init", "-q", "--bare", "-b", "main", str(host.root / "study.git"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"host": host}))
    host.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield host
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def first(host: Host) -> str:
    data = {"a.csv": ("100644", host.blob("1,2\n")), "run.sh": ("100755", host.blob("#!/bin/sh\n"))}
    return host.commit({"README": ("100644", host.blob("read me")), "data": ("40000", host.tree(data))})


def stage(uri: str, directory: Path, cache: InputCache | None = None, **options: object) -> tuple[dict[str, str], dict[str, str]]:
    directory.mkdir()
    sources: dict[str, str] = {}
    item = InputSpec(path="in", uri=uri)
    found = stage_inputs((item,), directory, lambda _text: None, cache=cache, resolved=sources.__setitem__, **options)  # type: ignore[arg-type]
    return found, sources


def files(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.gate
def test_a_branch_is_a_commit_which_the_record_has(host: Host, first: str, tmp_path: Path) -> None:
    found, sources = stage(host.at("@main"), tmp_path / "job")
    assert files(tmp_path / "job") == {"in/README": "read me", "in/data/a.csv": "1,2\n", "in/data/run.sh": "#!/bin/sh\n"}
    assert sources == {"in": host.at(f"@{first}")}
    assert os.access(tmp_path / "job/in/data/run.sh", os.X_OK)
    assert not os.access(tmp_path / "job/in/README", os.X_OK)
    # The commit is fetched alone, and its address gives the same again when the branch has gone on.
    host.commit({"README": ("100644", host.blob("changed"))})
    assert stage(sources["in"], tmp_path / "again")[0] == found
    assert files(tmp_path / "again") == files(tmp_path / "job")
    stage(host.at(), tmp_path / "head")
    assert files(tmp_path / "head") == {"in/README": "changed"}


def test_a_part_of_it_and_a_tag(host: Host, first: str, tmp_path: Path) -> None:
    host.git("tag", "-a", "v1", "-m", "x", first)
    _found, sources = stage(host.at("@v1#subdirectory=data"), tmp_path / "directory")
    assert files(tmp_path / "directory") == {"in/a.csv": "1,2\n", "in/run.sh": "#!/bin/sh\n"}
    assert sources == {"in": host.at(f"@{first}#subdirectory=data")}
    one, _ = stage(host.at("@v1#subdirectory=data/a.csv"), tmp_path / "file")
    assert (tmp_path / "file/in").read_text() == "1,2\n"
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/a.csv").write_text("1,2\n")
    assert one["in"] == fetch(str(tmp_path / "plain/a.csv"), tmp_path / "x")
    for rest, words in (
        ("@v2", 'no branch or tag "v2"'),
        ("#subdirectory=nothing", "has nothing at"),
        (f"@{'0' * 40}", "has no commit"),
    ):
        with pytest.raises(InputFailed, match=words):
            stage(host.at(rest), tmp_path / f"no{len(words)}")


def test_a_commit_comes_once(host: Host, first: str, tmp_path: Path) -> None:
    cache = open_cache(str(tmp_path / "cache"), 10**8, leave=0)
    fetches = lambda: sum("POST" in line and "git-upload-pack" in line for line in host.asked)  # noqa: E731
    before, _ = stage(host.at(f"@{first}"), tmp_path / "one", cache)
    asked = len(host.asked)
    assert fetches() > 0
    after, _ = stage(host.at(f"@{first}"), tmp_path / "two", cache)
    assert (before, len(host.asked)) == (after, asked)  # a commit is what it is: nobody is asked
    stage(host.at("@main#subdirectory=data"), tmp_path / "three", cache)
    assert files(tmp_path / "three") == {"in/a.csv": "1,2\n", "in/run.sh": "#!/bin/sh\n"}
    assert not any("shallow" in line for line in host.asked)
    (kept,) = (tmp_path / "cache/content").iterdir()
    kept.write_bytes(b"damaged")
    assert stage(host.at(f"@{first}"), tmp_path / "four", cache)[0] == before


def test_a_job_gets_the_commit_that_was_fetched_before_it_was_placed(host: Host, first: str, tmp_path: Path) -> None:
    cache = open_cache(str(tmp_path / "cache"), 10**8, leave=0, filling=True)
    assert cache is not None
    item, sources = InputSpec(path="in", uri=host.at("@main")), dict[str, str]()
    (tmp_path / "arriving").mkdir()
    digests = stage_in((item,), tmp_path / "arriving", lambda _text: None, cache=cache, resolved=sources.__setitem__)
    host.commit({"README": ("100644", host.blob("changed"))})
    asked = len(host.asked)
    staged = InputsReady(digests=digests, sources=sources)
    found = stage(host.at("@main"), tmp_path / "job", open_cache(str(tmp_path / "cache"), 10**8, leave=0), staged=staged)
    assert found == (digests, {"in": host.at(f"@{first}")})
    assert (tmp_path / "job/in/README").read_text() == "read me"
    assert len(host.asked) == asked


def test_a_server_of_files_alone_does(host: Host, first: str, tmp_path: Path) -> None:
    host.git("repack", "-a", "-d", "-q")
    host.git("update-server-info")
    host.smart = False
    stage(host.at("@main"), tmp_path / "job", open_cache(str(tmp_path / "cache"), 10**8, leave=0))
    assert (tmp_path / "job/in/README").read_text() == "read me"


def test_a_private_one_is_opened_by_the_owners_secrets_alone(
    host: Host, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.wanted = "git:correct-horse"
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine 127.0.0.1 login git password correct-horse\n")
    (home / ".gitconfig").write_text(
        f'[credential]\n\thelper = "!f() {{ touch {home}/asked; echo username=git; echo password=correct-horse; }}; f"\n'
    )
    monkeypatch.setenv("HOME", str(home))  # that of whoever runs the lab: not the job's owner's to use
    with pytest.raises(InputFailed, match="could not be read") as refused:
        stage(host.at(), tmp_path / "no")
    assert "GIT_PASSWORD" in refused.value.remedy
    assert not (home / "asked").exists()
    monkeypatch.setenv("GIT_PASSWORD", "correct-horse")
    stage(host.at(), tmp_path / "yes")
    assert (tmp_path / "yes/in/README").read_text() == "read me"


@pytest.mark.parametrize(
    "uri",
    [
        "git+https://-oProxyCommand=touch x/r.git",
        "git+ssh://-oProxyCommand=touch%20x/r.git",
        "git+ssh://-l@host/r.git",
        "git+https://host/r.git@--upload-pack=touch",
        "git+https://host/r.git@-x",
        "git+https://host/r.git@a..b",
        "git+https://host/r.git@a:b",
        "git+https://host/r.git@%2d%2dexec",
        "git+https://host/r.git@main%0a",
        "git+https://user:word@host/r.git",
        "git+https://host/",
        "git+https://host/r.git#subdirectory=../x",
        "git+https://host/r.git#subdirectory=.git/hooks",
        "git+https://host/r.git#branch=x",
        "git+https://host/r%0a.git",
        "git+ext::sh -c touch%20x",
        "git+ext://x/y",
        "git+file://host/r.git",
        "git+https:///r.git",
    ],
)
def test_what_git_must_not_be_given_is_refused_before_the_task_waits(uri: str, tmp_path: Path) -> None:
    with pytest.raises(InputFailed):
        check_uri(uri)
    with pytest.raises(InputFailed):
        fetch(uri, tmp_path / "x")


def test_where_there_is_no_git_the_task_is_refused_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    check_uri("git+ssh://git@host/owner/r.git@feature/x#subdirectory=data")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputFailed, match="no git on this machine") as refused:
        check_uri("git+https://host/r.git")
    assert "install it" in refused.value.remedy


@pytest.mark.parametrize("name", ["..", ".git", ".GIT", "a/b"])
def test_no_name_in_a_hostile_tree_leads_out(host: Host, tmp_path: Path, name: str) -> None:
    host.commit({"sub": ("40000", host.tree({name: ("100644", host.blob("planted"))}))})
    with pytest.raises(InputFailed) as refused:
        stage(host.at(), tmp_path / "job")
        # A name with a slash in it is a path like any other.
        assert files(tmp_path / "job") == {"in/sub/a/b": "planted"}
        raise InputFailed("is no place in a directory")
    assert "no place in a directory" in refused.value.message
    assert not list(tmp_path.rglob(".git"))


@pytest.mark.parametrize("leads", ["/etc/passwd", "../../secret", "dot/../../../secret"])
def test_no_link_in_a_hostile_tree_leads_out(host: Host, tmp_path: Path, leads: str) -> None:
    (tmp_path / "secret").write_text("secret")
    host.commit({"dot": ("120000", host.blob(".")), "link": ("120000", host.blob(leads)), "z": ("100644", host.blob("z"))})
    with pytest.raises(InputFailed, match="out of what is fetched"):
        stage(host.at(), tmp_path / "job")
    assert not [path for path in (tmp_path / "job").rglob("*") if path.is_symlink()]


def test_a_link_inside_stays_and_nothing_is_written_through_one(host: Host, tmp_path: Path) -> None:
    host.commit({"a": ("120000", host.blob("z")), "z": ("100644", host.blob("z"))})
    found, _ = stage(host.at(), tmp_path / "job")
    assert os.readlink(tmp_path / "job/in/a") == "z"  # noqa: PTH115
    assert found["in"].startswith("sha256:")
    host.commit({"a": ("120000", host.blob("..")), "a/planted": ("100644", host.blob("x"))})
    with pytest.raises(InputFailed, match=r"out of what is fetched|could not be read"):
        stage(host.at(), tmp_path / "through")
    assert not (tmp_path / "through" / "planted").exists()


def test_nothing_of_a_repository_is_run(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks, filters, configuration, submodules: all would leave a file behind."""
    ran = tmp_path / "ran"
    configured = tmp_path / "configured"
    configured.write_text(f'[filter "evil"]\n\tsmudge = "touch {ran}; cat"\n[core]\n\tfsmonitor = "touch {ran}"\n')
    for name, value in {
        "GIT_CONFIG_GLOBAL": str(configured),
        "GIT_TEMPLATE_DIR": str(host.root / "study.git"),
        "GIT_SSH_COMMAND": f"touch {ran}",
        "GIT_PROXY_COMMAND": f"touch {ran}",
        "GIT_ASKPASS": f"touch {ran}",
        "GIT_TRACE": str(ran),
    }.items():
        monkeypatch.setenv(name, value)
    module = f"[submodule \"m\"]\n\tpath = m\n\turl = ext::sh -c 'touch {ran}'\n\tupdate = !touch {ran}\n"
    monkeypatch.delenv("GIT_TRACE")  # for what writes the repository
    host.commit(
        {
            ".gitattributes": ("100644", host.blob("* filter=evil export-ignore ident text eol=crlf\n")),
            ".gitmodules": ("100644", host.blob(module)),
            "data.csv": ("100644", host.blob("$Id$\n")),
            "m": ("160000", "1" * 40),
        }
    )
    (host.root / "study.git/hooks").mkdir(exist_ok=True)
    for hook in ("post-checkout", "post-update", "pre-receive", "reference-transaction"):
        (host.root / "study.git/hooks" / hook).write_text(f"#!/bin/sh\ntouch {ran}\n")
        (host.root / "study.git/hooks" / hook).chmod(0o755)
    monkeypatch.setenv("GIT_TRACE", str(ran))
    told: list[str] = []
    directory = tmp_path / "job"
    directory.mkdir()
    stage_inputs((InputSpec(path="in", uri=host.at()),), directory, told.append)
    assert (directory / "in/data.csv").read_bytes() == b"$Id$\n"  # the very bytes of the commit
    assert not ran.exists()
    assert not (directory / "in/m").exists()
    assert any("submodules" in text and text.endswith(": m") for text in told)


def test_a_repository_on_the_machine_is_held_to_what_holds_for_files(host: Host, first: str, tmp_path: Path) -> None:
    stage(f"git+file://{host.root}/study.git", tmp_path / "job")
    assert (tmp_path / "job/in/README").read_text() == "read me"
    with pytest.raises(InputFailed, match="the lab's own directory"):
        stage(f"git+file://{host.root}/study.git", tmp_path / "no", closed=Closed((host.root,)))


def test_the_limits_of_inputs_hold(host: Host, first: str, tmp_path: Path) -> None:
    for number, (most, words) in enumerate(((Most(size=5), "input_limit"), (Most(files=1), "input_files"))):
        with pytest.raises(InputFailed, match=words):
            stage(host.at(), tmp_path / str(number), most=most)
    # A progress line counts while it comes (git-fetch(1) writes it to standard error).
    program = "import sys; sys.stderr.write('Receiving objects:  10% (1/10), 7.00 GiB | 1 MiB/s\\r'); sys.stderr.flush(); input()"
    wanted = read_address(host.at())
    talking = Git(wanted, tmp_path, tmp_path, News("x", lambda _text: None, most=Most(size=1024**3)))
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        with pytest.raises(InputFailed, match="input_limit"):
            talking._listen(process.stderr)
        process.kill()


def test_one_that_is_stopped_leaves_no_git_behind(
    host: Host, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job that is cancelled interrupts its runner: in the middle of what git says."""
    begun: list[subprocess.Popen[bytes]] = []
    start = Git._start

    def watched(self: object, arguments: tuple[str, ...], **more: object) -> subprocess.Popen[bytes]:
        begun.append(start(self, arguments, **more))  # type: ignore[arg-type]
        return begun[-1]

    def interrupted(*_words: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Git, "_start", watched)
    monkeypatch.setattr(Git, "_listen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage(host.at(), tmp_path / "job")
    assert all(process.returncode is not None for process in begun)
    assert list((tmp_path / "job").iterdir()) == []
