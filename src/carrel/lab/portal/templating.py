"""Renders templates; the same frame around every page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from carrel import __version__
from carrel.core.domain.ports import Clock
from carrel.core.domain.storage import LabDisk
from carrel.core.domain.user import Caller, User
from carrel.lab.gateway.gate import Grant
from carrel.lab.gateway.views import moment
from carrel.lab.portal import words

#: How long before its end a page warns of it; JupyterLab does so at the same time (`plugins.js`).
_SOON = timedelta(minutes=30)


class Templates:
    """The templates with what they all know."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Whether the frame has links to notebooks and GPUs.
        self.offers_sessions = False
        #: Whether a caller has a page of administration.
        self.administers: Callable[[Caller], bool] = lambda _caller: False
        #: The secret of the forms of the session that a request belongs to, or None.
        self.form_secret: Callable[[Request], str | None] = lambda _request: None
        #: Tells where the tracking server is, and whether it is ready; None where the lab has none.
        self.tracking: Callable[[], Mapping[str, str] | None] = lambda: None
        #: The disk of the lab's that has no room, or None.
        self.short: Callable[[], LabDisk | None] = lambda: None
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "duration": words.duration,
            "size": words.size,
            "sentence": words.sentence,
            "instant": moment,
            "when": self._when,
            "exactly": self._exactly,
            "shell": shlex.quote,
            "short": short,
            "ticks": ticks,
        }
        self._templates.tests["soon"] = lambda end: end - self.now() <= _SOON
        self._templates.globals |= {"version": __version__, "states": words.STATES, "sweep_states": words.SWEEP_STATES}
        self._templates.globals["machine_states"] = words.MACHINE_STATES

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """A whole page, or the part of one that a template is."""
        grant: Grant | None = getattr(request.state, "grant", None)
        user: User | None = grant.caller.user if grant is not None else None
        known = {
            "user": user,
            "path": request.url.path,
            "own_address": str(request.base_url).rstrip("/"),
            "administers": grant is not None and self.administers(grant.caller),
            "form_secret": self.form_secret(request) if user is not None else None,
            "short": self.short() if user is not None else None,
            "offers_sessions": self.offers_sessions,
            "tracking": self.tracking() if user is not None else None,
        }
        text = self._templates.get_template(template).render(known | values)
        return HTMLResponse(text, status)

    def know(self, **values: Any) -> None:
        """Let every template use these."""
        self._templates.globals |= values

    def now(self) -> datetime:
        """The time."""
        return self.moment(self._clock())

    def moment(self, at: float) -> datetime:
        """A time of the lab's as pages have it."""
        return datetime.fromtimestamp(at, UTC)

    def _when(self, when: datetime | None) -> str | Markup:
        """A time as people say it; the exact one on request. A script turns it into the reader's own time zone."""
        if when is None:
            return "–"
        return Markup('<time datetime="{}" title="{}">{}</time>').format(
            when.isoformat(timespec="seconds"), words.exact(when), words.ago(when, self.now())
        )

    def _exactly(self, when: datetime | None) -> str | Markup:
        """The same with the exact time beside it, also where no pointer can ask for it."""
        if when is None:
            return "–"
        return Markup('{}<br><time class="muted" data-exact datetime="{}">{}</time>').format(
            self._when(when), when.isoformat(timespec="seconds"), words.exact(when)
        )


def ticks(text: str) -> Markup:
    """`text` with what stands between backticks as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in enumerate(parts))


def short(digest: str) -> str:
    """The first digits of a digest, enough to compare by eye."""
    return digest.removeprefix("sha256:")[:12]
