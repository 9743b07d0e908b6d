"""Getting to know a lab that signs its own certificates, by the fingerprint that its administrator gave."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping

from carrel.client.stored_tokens import keep_authority
from carrel.core.domain.authority import LONGEST, check_fingerprint, fingerprint
from carrel.core.domain.errors import Denied, Invalid, Unavailable, in_words

#: Seconds for an answer.
_PATIENCE = 30.0


def trust(url: str, wanted: str, environment: Mapping[str, str] = os.environ) -> None:
    """Keep the authority of the lab at `url`, if it has the fingerprint `wanted`; from then on it alone is believed there.

    Raises `Invalid` for what is no fingerprint or no address with TLS, `Denied` when another authority is there, and
    `Unavailable` when none is.
    """
    check_fingerprint(wanted)
    if not url.startswith("https://"):
        raise Invalid(f"{url} is no address with TLS.", remedy="Begin it with https://, as `carrel up` shows it.")
    certificate = _fetch(f"{url.rstrip('/')}/authority.pem")
    found = fingerprint(certificate)
    if not hmac.compare_digest(found, wanted):
        raise Denied(
            f"The lab at {url} shows the fingerprint {found}, and not {wanted}.",
            remedy="Somebody may be between you and the lab. Send nothing, and ask its administrator.",
        )
    keep_authority(url, certificate, environment)


def _fetch(address: str) -> str:
    import ssl
    from urllib.error import HTTPError
    from urllib.request import HTTPSHandler, build_opener

    # Not trusted yet, so nothing is sent: no token, no name. The answer is judged by its fingerprint.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with build_opener(HTTPSHandler(context=context)).open(address, timeout=_PATIENCE) as answer:
            return bytes(answer.read(LONGEST + 1)).decode("ascii", "replace")
    except HTTPError as error:
        with error:
            raise Unavailable(
                f"There is no authority at {address} ({error.code}).",
                remedy="Its certificate is signed by somebody else, or it is no lab: leave --trust out.",
            ) from None
    except OSError as error:
        raise Unavailable(f"{address} does not answer: {in_words(error)}.", remedy="Is the address right?") from None
