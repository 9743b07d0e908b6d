"""The lab faces the network: TLS by file, names, proxies, cookies, and how often somebody may ask."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from carrel.client import Client
from carrel.core.domain.errors import Invalid, TooMany
from carrel.lab.gateway.hosts import host_name
from carrel.lab.gateway.rates import Rates
from carrel.lab.server.network import names, warnings
from carrel.lab.server.settings import read_settings
from carrel.lab.server.tls import Certificate
from carrel.notebooks.address import make_certificate
from carrel.testing.waiting import PATIENCE
from support.lab_process import LabProcess, start_lab
from support.ports import kept_port


def write_pair(directory: Path, name: str = "localhost") -> tuple[Path, Path]:
    certificate, key = make_certificate(name, datetime.now(UTC))
    files = (directory / "certificate.pem", directory / "key.pem")
    for file, text in zip(files, (certificate, key), strict=True):
        file.write_text(text)
    return files


def presented(certificate: Certificate) -> bytes:
    """What a client that connects now is shown, in memory."""
    mine = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    mine.check_hostname, mine.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    client = mine.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(5):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return shown


@pytest.mark.gate
def test_a_renewed_certificate_is_shown_to_who_connects_next_and_half_a_renewal_changes_nothing(tmp_path: Path) -> None:
    file, key = write_pair(tmp_path)
    certificate = Certificate(file, key)
    first = ssl.PEM_cert_to_DER_cert(file.read_text())
    assert presented(certificate) == first
    text, new_key = make_certificate("localhost", datetime.now(UTC))
    file.write_text(text)  # the key is still the old one's
    assert presented(certificate) == first
    key.unlink()
    assert presented(certificate) == first
    key.write_text(new_key)
    assert presented(certificate) == ssl.PEM_cert_to_DER_cert(text) != first


def test_files_that_cannot_be_used_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"TLS cannot be offered with .*nowhere"):
        Certificate(tmp_path / "nowhere", tmp_path / "key")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tls_certificate": "a.pem"}, "tls_certificate and tls_key go together"),
        ({"tls_certificate": "a.pem", "tls_key": "k.pem"}, "wants a public_url"),
        ({"tls_certificate": "a.pem", "tls_key": "k.pem", "public_url": "http://x"}, "wants a public_url"),
        ({"public_url": "gpus.example.org"}, 'public_url is "gpus.example.org"'),
        ({"public_url": "https://gpus.example.org/lab"}, "public_url is"),
        ({"proxy_secret": "short"}, "proxy_secret has 5 characters"),
        ({"proxy_secret": "one with blanks in it"}, "or one that a header cannot have"),
    ],
)
def test_settings_that_do_not_go_together_are_errors(tmp_path: Path, values: dict[str, str], words: str) -> None:
    with pytest.raises(Invalid, match=re.escape(words)):
        read_settings(tmp_path / "carrel.toml", {f"CARREL_{name.upper()}": value for name, value in values.items()}, {})


def test_who_listens_beyond_this_machine_without_tls_is_warned_and_told_the_remedy() -> None:
    assert warnings("127.0.0.1", tls=False) == warnings("::1", tls=False) == warnings("localhost", tls=False) == []
    assert warnings("0.0.0.0", tls=True) == []
    for host in ("0.0.0.0", "::", "10.0.0.7", "gpus"):
        said = " ".join(warnings(host, tls=False))
        assert "can read tokens" in said
        assert "tls_certificate" in said


def test_a_lab_that_does_not_know_its_proxy_is_told_so() -> None:
    here = "https://gpus.example.org"
    assert "proxy_secret" in " ".join(warnings("127.0.0.1", tls=False, public_url=here))
    assert warnings("127.0.0.1", tls=False, public_url=here, proxy=True) == warnings("::1", tls=True, public_url=here) == []


def test_names_are_read_without_ports() -> None:
    assert [host_name(one) for one in ("Lab.Org:80", "lab.org.", "[::1]:80", "1.2.3.4")] == [
        "lab.org",
        "lab.org",
        "::1",
        "1.2.3.4",
    ]
    assert names("https://lab.org:8", None, "http://10.0.0.1:1") == {"lab.org", "10.0.0.1"}
    assert names(None, "http://x") == frozenset()


def test_a_bucket_empties_with_requests_and_fills_with_time_for_each_by_itself() -> None:
    now = [0.0]
    rates = Rates(rate=2, burst=4, monotonic=lambda: now[0])
    for _ in range(4):
        rates.take("ada")
    with pytest.raises(TooMany) as refused:
        rates.take("ada")
    assert refused.value.retry_after == 1
    rates.take("bob")
    now[0] += 0.5
    rates.take("ada")
    with pytest.raises(TooMany):
        rates.take("ada")
    now[0] += 3600
    for _ in range(4):
        rates.take("ada")
    with pytest.raises(TooMany):
        rates.take("ada")
    unlimited = Rates(rate=0, burst=0, monotonic=lambda: now[0])
    for _ in range(1000):
        unlimited.take("ada")


def test_a_crowd_of_strangers_does_not_fill_the_memory() -> None:
    rates = Rates(rate=1, burst=2, monotonic=lambda: 0.0)
    for number in range(50_000):
        rates.take(str(number))
    assert len(rates._buckets) <= 20_001


def test_a_lab_with_tls_of_its_own(tmp_path: Path) -> None:
    file, key = write_pair(tmp_path)
    with kept_port() as port:
        url = f"https://localhost:{port}"
        variables = {
            "CARREL_PUBLIC_URL": url,
            "CARREL_TLS_CERTIFICATE": str(file),
            "CARREL_TLS_KEY": str(key),
            "CARREL_RATE_LIMIT": "3",
        }
        lab = start_lab(tmp_path / "home", "--port", str(port), simulate_gpus=0, variables=variables)
    try:
        assert lab.url == url
        trusting = ssl.create_default_context(cafile=str(file))
        trusting.check_hostname = False  # the certificates of these tests have no alternative names
        trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT if hasattr(ssl, "VERIFY_X509_STRICT") else ~0
        with httpx.Client(base_url=url, verify=trusting, timeout=PATIENCE) as http:
            assert http.get("/health").json()["status"] == "ok"
            entered = http.post("/login", data={"token": lab.token}, headers={"Origin": url, "Sec-Fetch-Site": "same-origin"})
            cookie = entered.headers["set-cookie"]
            lab_id = http.get("/api/v1/lab", headers={"Authorization": f"Bearer {lab.token}"}).json()["lab_id"]
            assert cookie.startswith(f"__Host-carrel_session_{lab_id}=")
            assert {"secure", "httponly", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
            assert "domain" not in cookie.lower()
            assert http.get("/", headers={"Cookie": cookie.partition(";")[0]}).status_code == 200
            wrong = http.get("/health", headers={"Host": "evil.example.org"})
            assert (wrong.status_code, wrong.json()["type"]) == (421, "urn:carrel:problem:misdirected")
            assert http.get("/health", headers={"Host": f"127.0.0.1:{port}"}).status_code == 200
            mine = {"Authorization": f"Bearer {lab.token}"}
            until = time.monotonic() + PATIENCE
            while (answer := http.get("/api/v1/share", headers=mine)).status_code == 200:
                assert time.monotonic() < until, "the limit was never reached"
            assert (answer.status_code, answer.json()["type"]) == (429, "urn:carrel:problem:too_many")
            assert int(answer.headers["retry-after"]) >= 1
            assert http.get("/api/v1/share").status_code == 401
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{urlsplit(url).port}/health")
    finally:
        lab.stop()


SECRET = "a-secret-of-thirty-two-characters"


def test_what_a_proxy_says_counts_only_with_the_secret_that_the_lab_shares_with_it(tmp_path: Path) -> None:
    secret = {"CARREL_PROXY_SECRET": SECRET}
    said = {"X-Forwarded-Proto": "https", "Sec-Fetch-Site": "same-origin"}
    for place, variables, more, secure in (
        ("none", {}, {}, False),
        ("guessed", secret, {"X-Carrel-Proxy": SECRET[:-1] + "S"}, False),
        ("said", secret, {"X-Carrel-Proxy": SECRET}, True),
    ):
        lab = start_lab(tmp_path / place, simulate_gpus=0, variables=variables)
        try:
            answer = httpx.post(f"{lab.url}/login", data={"token": lab.token}, headers=said | more, timeout=PATIENCE)
            assert answer.status_code == 303
            assert answer.headers["set-cookie"].startswith("__Host-") is secure
        finally:
            lab.stop()


def _tries(lab: LabProcess, more: Callable[[int], dict[str, str]], most: int = 90) -> list[int]:
    """The answers to wrong passwords until one has to wait, each for another name: only the address is the same."""
    found: list[int] = []
    with httpx.Client(base_url=lab.url, timeout=PATIENCE, headers={"Sec-Fetch-Site": "same-origin"}) as http:
        while len(found) < most and 429 not in found:
            said = {"name": f"nobody{len(found)}", "password": "x" * 12}
            found.append(http.post("/sign-in/password", data=said, headers=more(len(found))).status_code)
    return found


def _came_from(lab: LabProcess) -> set[str]:
    with Client(home=lab.home) as client:
        return {str(line["from"]) for line in client.audit(limit=1000, result="refused").lines}


@pytest.mark.gate
def test_a_job_is_no_proxy_and_forges_no_address(tmp_path: Path) -> None:
    # A job is a program on this machine, and connects as a proxy here would.
    lab = start_lab(tmp_path / "lab", simulate_gpus=0, variables={"CARREL_PROXY_SECRET": SECRET})
    try:
        forged = _tries(lab, lambda n: {"X-Forwarded-For": f"203.0.113.{n}", "X-Carrel-Proxy": "guess" * 6})
        assert forged[-1] == 429
        assert _came_from(lab) == {"127.0.0.1"}
        # Of the proxy the last address counts, which it has seen, and not what its client says before it.
        through = _tries(lab, lambda n: {"X-Forwarded-For": f"203.0.113.{n}, 198.51.100.7", "X-Carrel-Proxy": SECRET})
        assert (through[0], through[-1]) == (401, 429)
        others = _tries(lab, lambda n: {"X-Forwarded-For": f"203.0.113.{n}", "X-Carrel-Proxy": SECRET}, most=3)
        assert set(others) == {401}
        assert _came_from(lab) >= {"127.0.0.1", "198.51.100.7", "203.0.113.1"}
    finally:
        lab.stop()
