"""The lab's own certificate authority, as others know it: a certificate and its fingerprint."""

from __future__ import annotations

import base64
import hashlib
import re

from carrel.core.domain.errors import Invalid

_FORM = re.compile(r"sha256:[A-Za-z0-9_-]{43}")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----\s*")
#: What a fetched certificate may have, at most.
LONGEST = 16 * 1024


def fingerprint(certificate: str) -> str:
    """`sha256:` and the digest of the certificate (PEM) in base64url (RFC 4648, 5). Raises `Invalid` for what is none."""
    match = _CERTIFICATE.fullmatch(certificate.strip() + "\n")
    if match is None or len(certificate) > LONGEST:
        raise Invalid("That is no certificate in PEM.", remedy="Is it a lab of Carrel that answers there?")
    try:
        content = base64.b64decode("".join(match[1].split()), validate=True)
    except ValueError:
        raise Invalid("That is no certificate in PEM.", remedy="Is it a lab of Carrel that answers there?") from None
    return "sha256:" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def check_fingerprint(text: str) -> str:
    """The fingerprint that a person gave. Raises `Invalid` for what is none."""
    if not _FORM.fullmatch(text):
        raise Invalid(f'"{text[:100]}" is no fingerprint.', remedy="Copy it whole: sha256: and 43 characters.")
    return text
