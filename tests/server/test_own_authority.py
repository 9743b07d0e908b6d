"""TLS where nobody else gives the lab a certificate: it signs its own, and people compare a fingerprint once."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from carrel import Client
from carrel.client.transport import Untrusted
from carrel.client.trust import trust
from carrel.core.domain.authority import check_fingerprint, fingerprint
from carrel.core.domain.errors import Denied, Invalid, Unavailable
from carrel.lab.server import authority as authorities
from carrel.lab.server.authority import Authority
from carrel.lab.server.network import certified
from carrel.lab.server.settings import read_settings
from carrel.testing.waiting import PATIENCE
from support.fork_server import run_carrel
from support.lab_process import LabProcess, start_lab
from support.namespaces import why_no_namespaces

NAMES = ["localhost", "127.0.0.1", "*.localhost"]
#: A task that asks the lab three ways: the command line's library, plain Python, and what MLflow's client would be told.
ASKING = """
import json, os, ssl, urllib.request
from pathlib import Path
authority = os.environ["CARREL_CA_FILE"]
request = urllib.request.Request(
    os.environ["CARREL_URL"] + "/api/v1/jobs/" + os.environ["CARREL_JOB_ID"],
    headers={"Authorization": "Bearer " + os.environ["CARREL_TOKEN"]},
)
with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=authority)) as answer:
    print("state", json.load(answer)["state"])
try:
    urllib.request.urlopen(request)
except OSError as error:
    print("without", "CERTIFICATE_VERIFY_FAILED" in str(error))
print("mode", oct(Path(authority).stat().st_mode & 0o22))
print("brought", Path("brought.txt").read_text().strip(), os.environ["KEY"] == "hush" * 3)
"""


def certificate_of(made: Authority) -> x509.Certificate:
    return x509.load_pem_x509_certificate(made.certificate.read_bytes())


@pytest.mark.gate
def test_a_certificate_is_kept_until_it_ends_or_has_to_name_others(tmp_path: Path) -> None:
    first = Authority(tmp_path / "tls", NAMES)
    one = certificate_of(first)
    assert set(one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)) == {
        "localhost",
        "*.localhost",
    }
    assert one.not_valid_after_utc - datetime.now(UTC) > timedelta(days=80)
    assert {path.stat().st_mode & 0o77 for path in (tmp_path / "tls").iterdir()} == {0}
    again = Authority(tmp_path / "tls", NAMES)
    again.renew()
    assert certificate_of(again) == one
    other = Authority(tmp_path / "tls", [*NAMES, "gpus.example.org"])
    assert certificate_of(other) != one
    assert other.fingerprint == first.fingerprint, "those who trust the lab go on trusting it"


@pytest.mark.parametrize("damage", ["missing", "cut", "key", "killed", "another"])
def test_a_certificate_that_is_of_no_use_is_made_again(tmp_path: Path, damage: str) -> None:
    made = Authority(tmp_path / "tls", NAMES)
    if damage == "missing":
        made.certificate.unlink()
    elif damage == "cut":
        made.certificate.write_text(made.certificate.read_text()[:200])
    elif damage == "key":
        made.key.write_text("nonsense")
    elif damage == "killed":  # between the key and the certificate
        made.key.write_text(Authority(tmp_path / "else", NAMES).key.read_text())
    else:
        made.certificate.write_text(Authority(tmp_path / "else", NAMES).certificate.read_text())
    again = Authority(tmp_path / "tls", NAMES)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(again.certificate, again.key)
    assert again.fingerprint == made.fingerprint
    certificate_of(again).verify_directly_issued_by(x509.load_pem_x509_certificate(again.text.encode()))


def test_one_that_ends_soon_is_followed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Authority(tmp_path / "tls", NAMES)
    one = certificate_of(made)
    made.renew()
    assert certificate_of(made) == one
    monkeypatch.setattr(authorities.time, "time", lambda: (one.not_valid_after_utc - timedelta(days=29)).timestamp())
    made.renew()
    assert certificate_of(made) != one


def test_names_are_those_that_people_are_told() -> None:
    found = certified("https://gpus.example.org", "{session}.gpus.example.org", "https://login1:8642", None)
    assert found == ["gpus.example.org", "login1", "*.gpus.example.org"]
    assert certified("https://0.0.0.0:8642", "{session}.localhost") == ["*.localhost"]


@pytest.mark.parametrize(
    "text", ["", "sha256:", "sha256:" + "A" * 42, "sha256:" + "A" * 44, "md5:" + "A" * 43, "sha256:" + "+" * 43]
)
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is no fingerprint"):
        check_fingerprint(text)


@pytest.mark.parametrize("text", ["", "<html>", "-----BEGIN CERTIFICATE-----\nnope!\n-----END CERTIFICATE-----", "x" * 99_999])
def test_what_is_no_certificate_has_no_fingerprint(text: str) -> None:
    with pytest.raises(Invalid, match="no certificate"):
        fingerprint(text)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"TLS_OWN": "true", "TLS_CERTIFICATE": "a", "TLS_KEY": "b", "PUBLIC_URL": "https://x"}, "two ways of TLS"),
        ({"TLS_OWN": "true", "PUBLIC_URL": "http://gpus"}, 'public_url is "http://gpus"'),
        ({"TLS_OWN": "true", "SLURM_URL": "http://login1:8642"}, 'slurm_url is "http://login1:8642"'),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, values: Mapping[str, str], words: str) -> None:
    with pytest.raises(Invalid, match=re.escape(words)):
        read_settings(tmp_path / "carrel.toml", {f"CARREL_{name}": value for name, value in values.items()}, {})


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    # Jobs, and what brings their inputs, are behind walls where this machine can build some: they see whom to trust all the same.
    variables = {"CARREL_TLS_OWN": "1", "CARREL_ISOLATION": "none" if why_no_namespaces() else "kernel"}
    running = start_lab(tmp_path_factory.mktemp("own") / "lab", "--cpus", "4", simulate_gpus=0, variables=variables)
    yield running
    running.stop()


class Guest:
    """A person on another machine: none of the lab's files, none of our variables."""

    def __init__(self, home: Path) -> None:
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("CARREL_", "XDG_"))}
        self.variables = {**bare, "HOME": str(home), "NO_COLOR": "1"}
        home.mkdir()

    def __call__(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return run_carrel(words, variables=self.variables, timeout=PATIENCE)


def of(lab: LabProcess) -> str:
    return fingerprint((lab.home / "tls" / "authority.pem").read_text())


def test_the_start_says_whom_to_trust_and_the_labs_own_machine_knows(own: LabProcess) -> None:
    assert own.url.startswith("https://127.0.0.1:")
    said = own.said
    while "Ctrl-C" not in said:
        said += os.read(own.output.fileno(), 65536).decode()
    assert of(own) in said
    assert "warning" not in said
    assert ("the lab runs as root" in said) == (os.geteuid() == 0)
    with Client(home=own.home) as client:
        assert client.lab().caller.role == "admin"


def test_a_stranger_is_believed_only_by_its_fingerprint(own: LabProcess, tmp_path: Path) -> None:
    guest = Guest(tmp_path / "home")
    with Client(home=own.home) as client:
        invitation = client.invite_user("ada").code
    refused = guest("login", own.url, "--invitation", invitation)
    assert refused.returncode != 0
    assert b"Nobody that you trust vouches for the lab" in refused.stderr
    assert b"--trust" in refused.stderr
    wrong = guest("login", own.url, "--invitation", invitation, "--trust", "sha256:" + "A" * 43)
    assert wrong.returncode != 0
    assert b"may be between you and the lab" in wrong.stderr
    assert not list((tmp_path / "home").rglob("*.pem"))
    signed_in = guest("login", own.url, "--invitation", invitation, "--trust", of(own))
    assert signed_in.returncode == 0, signed_in.stderr
    assert guest("ps", "--json").returncode == 0
    # Another lab at that address, or somebody who plays it, is nobody.
    kept = next((tmp_path / "home").rglob("*.pem"))
    kept.write_text(Authority(tmp_path / "other", NAMES).text)
    other = guest("ps")
    assert b"Nobody that you trust" in other.stderr


def test_an_invitation_brings_the_fingerprint(own: LabProcess) -> None:
    variables = {**os.environ, "CARREL_HOME": str(own.home)}
    for words in (("user", "invite", "grace"), ("user", "add", "edith")):
        done = run_carrel(words, variables=variables, timeout=PATIENCE)
        assert f"carrel login {own.url}" in done.stdout.decode()
        assert f"--trust {of(own)}" in done.stdout.decode()
    made = run_carrel(("token", "--env", "--scope", "read"), variables=variables, timeout=PATIENCE)
    assert f"CARREL_CA_FILE={own.home}/tls/authority.pem" in made.stdout.decode().split(), made.stderr


def test_jobs_ask_the_lab_over_tls(own: LabProcess, tmp_path: Path) -> None:
    with Client(home=own.home) as client:
        client.set_secret("KEY", "hush" * 3)
        (tmp_path / "first").mkdir()
        (tmp_path / "first" / "make.sh").write_text("mkdir -p outputs; echo of another job > outputs/found.txt")
        first = client.submit_project(tmp_path / "first" / "make.sh").id
        assert client.wait(first, timeout=PATIENCE).state == "COMPLETED"
        project = tmp_path / "second"
        project.mkdir()
        (project / "ask.py").write_text(ASKING)
        (project / "MLproject").write_text(
            "name: ask\nentry_points:\n  main:\n    command: python ask.py\n"
            f"carrel:\n  secrets: [KEY]\n  inputs:\n    - path: brought.txt\n      uri: job:{first}/outputs/found.txt\n"
        )
        second = client.submit_project(project).id
        ended = client.wait(second, timeout=PATIENCE)
        log = b"".join(client.log(second)).decode()
    assert ended.state == "COMPLETED", log
    assert log.splitlines()[-4:] == ["state RUNNING", "without True", "mode 0o0", "brought of another job True"]


def test_what_is_trusted_is_judged_before_anything_is_told(own: LabProcess, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    with pytest.raises(Denied, match="shows the fingerprint"):
        trust(own.url, "sha256:" + "B" * 43, environment)
    with pytest.raises(Invalid, match="no address with TLS"):
        trust(own.url.replace("https", "http"), of(own), environment)
    with pytest.raises(Unavailable, match="does not answer"):
        trust("https://127.0.0.1:1", of(own), environment)
    assert not (tmp_path / "config").exists()
    with pytest.raises(Untrusted), Client(own.url, "none-at-all") as client:
        client.lab()
    with pytest.raises(httpx.TransportError):
        httpx.get(own.url.replace("https", "http"))
