"""`carrel.report`: a trial tells the lab what its metric is. Standard library only, Python 3.8, so that it can stand anywhere."""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request

#: Seconds for which a lab that does not answer is tried, and between two tries: it may be starting again.
_PATIENCE, _PAUSE = 120.0, 1.0
_WAITS = (429, 502, 503, 504)


def report(value: float, step: int = 0) -> bool:
    """Tell the value of the sweep's metric at `step`. Returns True when the trial is pruned: it is about to be ended.

    Outside of a sweep it does nothing, and returns False. Raises `RuntimeError` when the lab refuses the value, or is away.
    """
    sweep, trial = os.environ.get("CARREL_SWEEP"), os.environ.get("CARREL_TRIAL")
    url, token = os.environ.get("CARREL_URL"), os.environ.get("CARREL_TOKEN")
    if not (sweep and trial):
        return False
    if not (url and token):
        raise RuntimeError("carrel.report needs the lab, and this task was submitted without a network to it.")
    request = urllib.request.Request(
        f"{url}/api/v1/sweeps/{sweep}/trials/{trial}/values",
        data=json.dumps({"values": [{"step": int(step), "value": float(value)}]}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method="POST",
    )
    authority = os.environ.get("CARREL_CA_FILE")
    context = ssl.create_default_context(cafile=authority) if authority else None
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                return bool(json.load(answer)["pruned"])
        except urllib.error.HTTPError as error:
            if error.code not in _WAITS or time.monotonic() > until:
                raise RuntimeError(f"The lab refused the value {value}: {_words(error)}") from None
        except OSError as error:
            if time.monotonic() > until:
                raise RuntimeError(f"The lab does not answer at {url}: {error}") from None
        time.sleep(_PAUSE)


def _words(error: urllib.error.HTTPError) -> str:
    try:
        said = json.load(error)
        return f"{said['detail']} {said.get('remedy', '')}".strip()
    except (ValueError, KeyError, TypeError, OSError):
        return f"HTTP status {error.code}"
