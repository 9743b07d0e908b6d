"""A certificate authority of the lab's own: TLS where nobody else gives the lab a certificate.

Who reaches the lab for the first time compares the authority's fingerprint (`carrel login URL --trust FINGERPRINT`); from then on
only certificates that this authority has signed are believed (RFC 5280).
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from carrel.core.domain.authority import fingerprint
from carrel.lab.server.home import write_private

#: How long the authority and a certificate are good for, and when the next certificate is made.
_AUTHORITY, _CERTIFICATE, _NEXT = timedelta(days=3650), timedelta(days=90), timedelta(days=30)
#: Clocks of other machines may be slow.
_BEFORE = timedelta(days=1)


class Authority:
    """Keeps its key, the lab's certificate and that one's key in a directory of the lab's home. Thread-safe."""

    def __init__(self, directory: Path, names: Iterable[str]) -> None:
        """`names` are the host names and addresses by which the lab is reached; what is missing is made."""
        self._directory = directory
        self._names = tuple(dict.fromkeys(names))
        self._guard = threading.Lock()
        directory.mkdir(mode=0o700, exist_ok=True)
        self.path = directory / "authority.pem"
        self.certificate, self.key = directory / "lab.pem", directory / "lab.key"
        if not self.path.exists():
            self._begin(datetime.now(UTC))
        self.text = self.path.read_text()
        self.fingerprint = fingerprint(self.text)
        self._until = self._valid_until()
        self.renew()

    def renew(self) -> None:
        """Make the next certificate, where the present one ends soon or is for other names."""
        if time.time() < self._until:
            return
        with self._guard:
            if time.time() >= self._until:
                self._sign(datetime.now(UTC))
                self._until = self._valid_until()

    def _valid_until(self) -> float:
        """When the next certificate is wanted (Unix seconds)."""
        try:
            found = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            named = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            found.verify_directly_issued_by(x509.load_pem_x509_certificate(self.text.encode()))
            key = serialization.load_pem_private_key(self.key.read_bytes(), password=None)
        except Exception:  # noqa: BLE001 - missing, damaged or another authority's: the remedy is the same, a new one
            return 0.0
        # They are written one after the other: who was killed between has left a new key with the old certificate.
        if key.public_key() != found.public_key() or set(named) != set(_general(self._names)):
            return 0.0
        return (found.not_valid_after_utc - _NEXT).timestamp()

    def _begin(self, now: datetime) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"Carrel lab on {socket.gethostname()}")
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(now + _AUTHORITY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(self._directory / "authority.key", _private(key))
        write_private(self.path, _public(made))

    def _sign(self, now: datetime) -> None:
        ours = x509.load_pem_x509_certificate(self.text.encode())
        signer = serialization.load_pem_private_key((self._directory / "authority.key").read_bytes(), password=None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            x509.CertificateBuilder()
            .subject_name(_name(self._names[0]))
            .issuer_name(ours.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(min(now + _CERTIFICATE, ours.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(_general(self._names)), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .sign(signer, hashes.SHA256())
        )
        write_private(self.key, _private(key))
        write_private(self.certificate, _public(made) + self.text)


def local_names() -> list[str]:
    """By which this machine is reached, with any settings."""
    host = socket.gethostname()
    return ["localhost", "127.0.0.1", "::1", host, socket.getfqdn(host)]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text[:64])])


def _general(names: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name.encode("idna").decode() if not name.isascii() else name))
    return found


def _usage(**given: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign",
        "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: given.get(name, False) for name in names})


def _public(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
