"""What a runner asks the lab itself, with the token of its job."""

from __future__ import annotations

import http.client
import ssl
from urllib.parse import urlsplit

from carrel.core.domain.launch import Launch

#: Seconds between two tries while the gateway does not answer.
PAUSE = 1.0


def ask(launch: Launch, token: str, what: str, *, patience: float) -> tuple[int, bytes]:
    """Return status and body of `GET /api/v1/jobs/{id}/{what}`; status 0 while the lab is down or being restarted."""
    address = urlsplit(launch.gateway)
    host, port = address.hostname or "localhost", address.port
    connection: http.client.HTTPConnection
    if address.scheme == "https":
        trusted = ssl.create_default_context(cadata=launch.authority or None)
        connection = http.client.HTTPSConnection(host, port, timeout=patience, context=trusted)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=patience)
    try:
        connection.request(
            "GET", f"{address.path}/api/v1/jobs/{launch.job_id}/{what}", headers={"Authorization": f"Bearer {token}"}
        )
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
