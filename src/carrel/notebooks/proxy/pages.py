"""The few pages that a session's host name shows when the session itself does not: plain, and telling strangers nothing."""

from __future__ import annotations

from html import escape

from starlette.responses import HTMLResponse, Response

#: No page of ours may be shown inside another site's page, keep anything, or leave its address there.
_SECURITY = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
}
_TEXT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">{head}
<title>{title} · Carrel</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 20vh auto; padding: 0 1.5rem }}
h1 {{ font-size: 1.4rem; font-weight: 600 }}
</style></head>
<body><main><h1>{title}</h1><p role="status">{text}</p></main></body></html>
"""


def not_let_in() -> Response:
    """Only a browser that is let in learns whether there is a session of this name."""
    return _page(
        401,
        "This browser was not let in",
        "Open the session again: <code>carrel notebook</code> or <code>carrel open</code>, or the lab's page of the session.",
    )


def bad_ticket() -> Response:
    """The link was used, or is too old, or was never made."""
    return _page(
        403,
        "This link does not let anybody in any more",
        "It works once, for a minute. Ask for another: <code>carrel notebook</code> or <code>carrel open</code>, "
        "or the lab's page of the session.",
    )


def other_site() -> Response:
    """Another site's page caused the request."""
    return _page(403, "This request comes from another site", "Use the session's own pages.")


def nothing_here() -> Response:
    """No such place, or no such session."""
    return _page(404, "There is nothing here", "The lab's pages list your sessions.")


def over(message: str) -> Response:
    """The session has ended."""
    return _page(410, "This session is over", f"{escape(message)} Its files are still there; start another one.")


def starting(message: str) -> Response:
    """Not yet; the page looks again by itself."""
    text = escape(message) or "JupyterLab is being started."
    return _page(503, "The session is starting", text, head='<meta http-equiv="refresh" content="1">')


def broken_off() -> Response:
    """The session took the request and did not answer it."""
    return _page(
        502, "The session broke off", "It went away before it answered. Whether it did what it was asked to is not known."
    )


def too_many() -> Response:
    """The lab has as many requests for the session as one may have."""
    return _page(429, "There are too many requests at once", "Close some of the session's pages, and load this one again.")


def unreadable() -> Response:
    """Such an address cannot be passed on."""
    return _page(400, "This address cannot be read", "It is not one of the session's.")


def _page(status: int, title: str, text: str, head: str = "") -> Response:
    headers = {**_SECURITY, **({"Retry-After": "1"} if status == 503 else {})}
    return HTMLResponse(_TEXT.format(title=title, text=text, head=head), status, headers=headers)
