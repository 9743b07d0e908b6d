"""Where a session takes connections: a unix socket on the lab's own machine, or a port of another one behind TLS.

On another machine every user can connect to every port. So both sides of that connection show the same certificate, which was
made for this one attempt: who does not have its key, which lies in a file of the attempt's owner alone, gets no further than the
handshake (RFC 8446, 4.4.2).
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import ssl
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

from carrel.core.domain.errors import Invalid
from carrel.core.domain.serial import from_plain
from carrel.core.spool.foreign import parse_json

#: Longest file that is read: its writer is the session's user.
LONGEST = 65_536
_VERSION = 1
#: Characters of a certificate or key, which take a tenth of it (P-256); connecting with a large key would take the lab's time.
_LONGEST_PEM = 4096
_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
#: Clocks of two machines may differ by so much, and a session may live for so long.
_BEFORE, _AFTER = timedelta(days=1), timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket on this machine, which the file system's rights protect."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsAddress:
    """A port of another machine, and what both sides show to each other there."""

    host: str
    port: int
    #: PEM.
    certificate: str
    key: str

    def __repr__(self) -> str:
        return f"TlsAddress({self.host}:{self.port})"  # the key is nothing for a log


Address = UnixAddress | TlsAddress


def read_address(data: bytes) -> TlsAddress:
    """The address in a file that `write_address` wrote. Raises `Invalid` for anything else: its writer need not be a friend."""
    try:
        said = dict(parse_json(data[:LONGEST]))
        version, found = said.pop("v"), from_plain(TlsAddress, said)
        ipaddress.ip_address(found.host)  # a name would be looked up for as long as its owner's name server likes
        if version != _VERSION or not 0 < found.port < 65_536:
            raise ValueError("not an address")
        if max(len(found.certificate), len(found.key)) > _LONGEST_PEM:
            raise ValueError("other certificates than ours")
        client_context(found)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise Invalid(
            f"The session's address cannot be read: {type(error).__name__}.", remedy="Start the session again."
        ) from None
    return found


def read_ports(text: str) -> range:
    """The TCP ports in "40000-40999"; range(0, 1), which stands for any, in "". Raises `Invalid`."""
    match = _PORTS.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if text.strip() and not 0 < first <= last < 65_536:
        raise Invalid(f'"{text}" is no range of ports.', remedy='Write it like "40000-40999".')
    return range(first, last + 1)


def write_address(path: Path, address: TlsAddress) -> None:
    """Write the file for `read_address`, all at once, for the owner's eyes only."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"v": _VERSION, **asdict(address)}, file)
    draft.replace(path)


def make_certificate(name: str, now: datetime) -> tuple[str, str]:
    """A new key (P-256) and a certificate that it signed itself, both as PEM: (certificate, key)."""
    # Imported here: the lab reads addresses and makes none.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        made.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode(),
    )


@lru_cache(maxsize=256)
def client_context(address: TlsAddress) -> ssl.SSLContext:
    """TLS for who connects: nobody but the holder of the key is believed. Raises `OSError` and `ValueError` for a bad one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate itself is known, so its name says nothing more.
    context.check_hostname = False
    return _with_certificate(context, address.certificate, address.key)


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS for who listens: who connects has to show the same certificate."""
    return _with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)


def _with_certificate(context: ssl.SSLContext, certificate: str, key: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    # OpenSSL reads keys from files only; this one has no name. And it would ask for the password of a key at the terminal.
    descriptor = os.memfd_create("session", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, f"{certificate}\n{key}".encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: "")
    finally:
        os.close(descriptor)
    return context
