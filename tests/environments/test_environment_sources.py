"""Where packages come from: pip's configuration reaches uv, uv's own wins, and credentials go nowhere else."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from environment_lab import Lab

from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe
from carrel.node.environments import EnvironmentFailed, activate
from carrel.node.environments.mirrors import read_mirrors

Recipe = Callable[..., EnvironmentRecipe]


def everything_written(lab: Lab) -> str:
    """All text in the store, and every call of uv."""
    files = [path for path in lab.root.rglob("*") if path.is_file() and not path.is_symlink()]
    return "\n".join([*(path.read_text(errors="replace") for path in files), *lab.calls()])


@pytest.mark.gate
def test_find_links_of_pip_are_used_and_missing_directories_left_out(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    missing = lab.base / "not-mounted"
    lab.pip_conf(
        f"[global]\nno-index = yes\nfind-links =\n    {lab.wheels}\n    {missing}\nextra-index-url = {missing.as_uri()}/simple\n"
    )
    assert lab.prepare(needs("alpha")).built
    assert any(str(missing) in line and "left out" in line for line in lab.reports)


def test_variables_of_uv_go_before_its_file_that_before_variables_of_pip_and_those_before_its_file(
    lab: Lab, needs: Recipe
) -> None:
    others = lab.base / "others"
    others.mkdir()
    lab.wheel("alpha", "1.0")
    lab.wheel("alpha", "2.0", where=others)
    assert "alpha==1.0" in lab.prepare(needs("alpha")).lock
    lab.environ["PIP_FIND_LINKS"] = str(others)
    assert "alpha==2.0" in lab.prepare(needs("alpha")).lock
    file = lab.home / ".config/uv/uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"no-index = true\nfind-links = [{json.dumps(str(lab.wheels))}]\n")
    assert "alpha==1.0" in lab.prepare(needs("alpha")).lock
    lab.environ["UV_FIND_LINKS"] = str(others)
    assert "alpha==2.0" in lab.prepare(needs("alpha")).lock


def test_an_index_with_a_password_works_and_the_password_stays_where_it_was(lab: Lab, needs: Recipe, private_index: str) -> None:
    lab.pip_conf(f"[global]\nindex-url = http://carla:s3cret%2Fpw@{private_index}\n")
    log = lab.base / "log"
    log.touch()
    environment = lab.prepare(needs("guarded"), log=log)
    assert environment.built
    said = [environment.lock, log.read_text(), everything_written(lab), *lab.reports]
    assert not any("s3cret" in text for text in said)
    assert "carla" not in environment.lock

    # A new password resolves to the same thing: nothing is done again.
    calls = lab.calls()
    lab.pip_conf(f"[global]\nindex-url = http://carla:another@{private_index}\n")
    assert not lab.prepare(needs("guarded")).built
    assert lab.calls() == calls


def test_errors_do_not_tell_passwords(lab: Lab, needs: Recipe, private_index: str) -> None:
    log = lab.base / "log"
    log.touch()
    lab.pip_conf(f"[global]\nindex-url = http://carla:wr0ng%2Fpass@{private_index}\n")
    with pytest.raises(EnvironmentFailed) as failure:
        lab.prepare(needs("guarded"), log=log)
    lab.pip_conf("")
    with pytest.raises(EnvironmentFailed) as other:
        lab.prepare(needs(f"guarded @ http://carla:wr0ng%2Fpass@{private_index}/guarded-1.0-py3-none-any.whl"), log=log)
    for text in (str(failure.value), str(other.value), log.read_text()):
        assert text
        assert "wr0ng" not in text


def test_passwords_that_a_tool_blurts_out_are_struck_out(lab: Lab, needs: Recipe) -> None:
    lab.pip_conf("[global]\nindex-url = http://carla:wr0ng%2Fpass@127.0.0.1:9/simple\n")
    lab.uv(
        'case "$*" in "pip compile"*) printf "error: \\033[31mno %s\\033[0m, tried wr0ng/pass and wr0ng%%2Fpass\\n" '
        '"git+https://eve:t0ken@host/x" >&2; exit 2;; esac'
    )
    log = lab.base / "log"
    log.touch()
    with pytest.raises(EnvironmentFailed) as failure:
        lab.prepare(needs("alpha"), log=log)
    said = "error: no git+https://****@host/x, tried **** and ****"
    assert failure.value.message.splitlines()[-1] == said
    assert log.read_text() == said + "\n"


def test_an_index_named_in_the_requirements_serves_the_installation_too(lab: Lab, needs: Recipe, private_index: str) -> None:
    lab.pip_conf("")
    environment = lab.prepare(needs(f"--index-url http://carla:s3cret%2Fpw@{private_index}", "guarded"))
    assert environment.built
    assert "s3cret" not in environment.lock
    assert "s3cret" not in "\n".join(lab.calls())


def test_the_labs_own_variables_do_not_reach_the_tools(lab: Lab, needs: Recipe) -> None:
    lab.wheel("alpha")
    lab.environ |= {"CARREL_TOKEN": "hush", "MLFLOW_TRACKING_TOKEN": "hush", "MAX_JOBS": "2"}
    seen = lab.base / "seen"
    lab.uv(f"env > {seen}")
    lab.prepare(needs("alpha"))
    assert "MAX_JOBS=2" in seen.read_text()
    assert "hush" not in seen.read_text()


def test_conda_without_a_tool_says_what_to_install(lab: Lab) -> None:
    lab.environ["PATH"] = "/usr/bin:/bin"
    recipe = EnvironmentRecipe(kind=EnvironmentKind.CONDA, source="conda.yaml", files={"conda.yaml": "dependencies: [cudnn]"})
    with pytest.raises(EnvironmentFailed, match=r"conda\.yaml.*micromamba.*pixi"):
        lab.prepare(recipe)


def test_conda_through_micromamba(lab: Lab) -> None:
    """A stand-in for micromamba that makes what conda makes: a prefix with conda-meta (not proven with the real one)."""
    real = lab.prepare(EnvironmentRecipe()).python.resolve()
    tools = lab.base / "tools"
    tools.mkdir()
    (tools / "micromamba").write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {lab.base}/mamba-calls\n'
        'grep -q impossible "$6" && { echo "error    libmamba Could not solve for environment specs" >&2; exit 1; }\n'
        'mkdir -p "$4/bin" "$4/conda-meta"\n'
        f'ln -s {real} "$4/bin/python"\n'
        """echo '{"name": "python", "version": "3.11.9", "md5": "abc", "url": "https://h/t/tok-en/main/python.conda"}' """
        '> "$4/conda-meta/python-3.11.9.json"\n'
    )
    (tools / "micromamba").chmod(0o755)
    lab.environ["PATH"] = f"{tools}:/usr/bin:/bin"

    def recipe(text: str) -> EnvironmentRecipe:
        return EnvironmentRecipe(kind=EnvironmentKind.CONDA, source="conda.yaml", files={"conda.yaml": text})

    first = lab.prepare(recipe("dependencies: [python, cudnn]"))
    assert first.built
    assert first.version == "cpython-3.11.9"
    assert first.lock == "@EXPLICIT\nhttps://h/t/****/main/python.conda#abc\n"
    assert activate(first.path, {"PATH": "/usr/bin"}, conda=True)["CONDA_PREFIX"] == str(first.path)
    second = lab.prepare(recipe("dependencies: [python, cudnn]"))
    assert (second.built, second.lock, second.digest) == (False, first.lock, first.digest)
    assert len(Path(lab.base / "mamba-calls").read_text().splitlines()) == 1
    with pytest.raises(EnvironmentFailed, match="Could not solve"):
        lab.prepare(recipe("dependencies: [impossible]"))


@pytest.fixture
def dated_index(lab: Lab) -> Iterator[str]:
    """A package index that says when each version of "thing" was published (PEP 691 and 700)."""
    published = {"1.0": "2023-06-01T00:00:00Z", "2.0": "2025-06-01T00:00:00Z"}
    files = {lab.wheel("thing", version, where=lab.base): when for version, when in published.items()}
    listed = [
        {
            "filename": file.name,
            "url": f"/{file.name}",
            "hashes": {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
            "upload-time": when,
        }
        for file, when in files.items()
    ]
    page = json.dumps({"meta": {"api-version": "1.1"}, "name": "thing", "versions": [*published], "files": listed}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> bytes:
            found = next((file.read_bytes() for file in files if self.path == f"/{file.name}"), None)
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream" if found else "application/vnd.pypi.simple.v1+json")
            self.send_header("Content-Length", str(len(found or page)))
            self.end_headers()
            return found or page

        def do_GET(self) -> None:
            self.wfile.write(self.do_HEAD())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()


def test_requirements_are_resolved_as_of_a_date(lab: Lab, needs: Recipe, dated_index: str) -> None:
    lab.pip_conf(f"[global]\nindex-url = {dated_index}\n")
    now = lab.prepare(needs("thing"))
    then = lab.prepare(needs("thing", as_of="2023-12-02T00:00:00Z"))
    assert [environment.lock.split()[0] for environment in (now, then)] == ["thing==2.0", "thing==1.0"]
    assert now.digest != then.digest
    assert not lab.prepare(needs("thing", as_of="2023-12-02T00:00:00Z")).built
    with pytest.raises(EnvironmentFailed, match="2023"):
        lab.prepare(needs("thing", as_of="2023-01-01T00:00:00Z"))


def test_exact_pins_that_fail_propose_a_date(lab: Lab, needs: Recipe) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        lab.prepare(needs("absent[extra]==2.8.1", "other>=1", "further == 1.0"))
    assert "resolve_as_of" in caught.value.remedy
    assert "absent[extra]==2.8.1, further == 1.0" in caught.value.remedy
    for recipe in (needs("absent>=1"), needs("absent==2.8.1", as_of="2023-12-02T00:00:00Z")):
        with pytest.raises(EnvironmentFailed) as caught:
            lab.prepare(recipe)
        assert "resolve_as_of" not in str(caught.value)


def test_uv_trusts_what_the_system_trusts_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    told = "UV_SYSTEM_CERTS"
    assert read_mirrors(home).variables.get(told) == ("true" if Path("/etc/ssl/certs/ca-certificates.crt").exists() else None)
    assert read_mirrors({**home, told: "false"}).variables[told] == "false"
    assert told not in read_mirrors({**home, "UV_NATIVE_TLS": "false"}).variables
    (tmp_path / ".config/uv").mkdir(parents=True)
    (tmp_path / ".config/uv/uv.toml").write_text("system-certs = false\n")
    assert told not in read_mirrors(home).variables
