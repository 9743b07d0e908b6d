"""`CarrelSpawner`: the servers of a JupyterHub's users are sessions of a lab.

JupyterHub's documentation has the contract: https://jupyterhub.readthedocs.io/en/stable/reference/spawners.html
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from jupyterhub.spawner import Spawner  # type: ignore[import-untyped]
from jupyterhub.utils import maybe_future, url_escape_path, url_path_join  # type: ignore[import-untyped]
from traitlets import Callable as CallableTrait
from traitlets import Dict, Unicode, Union, default

from carrel.client import Client
from carrel.core.domain.errors import CarrelError, Conflict, NotFound, Unauthenticated, Unavailable
from carrel.wire import v1
from carrel_jupyterhub import form
from carrel_jupyterhub.request import session_request, variables_for
from carrel_jupyterhub.words import LabRefused, Step, ended, exit_code, refused, step

T = TypeVar("T")
#: Seconds between two looks at a session that starts: soon at first, seldom for one that stands in a long queue.
_FIRST_LOOK, _LAST_LOOK = 0.1, 2.0
#: Seconds until a session that is asked to end must have ended. The runner kills what does not listen long before that.
_STOP_SECONDS = 120.0
_EVERYWHERE = ("", "0.0.0.0", "::")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class CarrelSpawner(Spawner):  # type: ignore[misc]
    """Starts a user's server as a session of a lab: it waits in the lab's queue, keeps its limits, and shows the lab's words.

    `state` is the number of the session, so that a hub that was restarted finds it again.
    """

    lab_url = Unicode("", config=True, help="Address of the lab, like https://lab.example.org. [CARREL_URL]")
    token_of = Union(
        [Dict(), CallableTrait()],
        config=True,
        help="""The lab's token for a user of the hub: a dict by the hub's user name, or a function of the spawner
        (its user is `spawner.user.name`), which may be async. The session belongs to whom the token belongs to.""",
    )
    session_defaults = Dict(
        config=True,
        help="""What a session is asked for unless its user chose otherwise: gpus, reserve, environment, image, qos, partition,
        account, cpus, memory ("8G"), time ("12h").""",
    )

    #: Of all spawners together: a lab that does not answer must not keep the hub from its other work.
    _threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="carrel")

    @default("start_timeout")
    def _start_timeout(self) -> int:
        # Includes the time in the queue; the user sees why it waits, and may leave.
        return 3600

    @default("http_timeout")
    def _http_timeout(self) -> int:
        return 120

    @default("token_of")
    def _token_of(self) -> Mapping[str, str]:
        return {}

    @default("options_form")
    def _options_form(self) -> Callable[[CarrelSpawner], Any]:
        return CarrelSpawner._offered

    @default("options_from_form")
    def _options_from_form(self) -> Callable[[Mapping[str, list[str]]], dict[str, Any]]:
        return form.read

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._session_id: int | None = None
        self._attempt = 0
        self._lab: Client | None = None
        self._step = Step(0, "")
        self._news = asyncio.Event()

    # ---- what a restarted hub has to know

    def get_state(self) -> dict[str, Any]:
        """For the hub's database."""
        state: dict[str, Any] = super().get_state()
        if self._session_id is not None:
            state["carrel"] = {"session": self._session_id, "attempt": self._attempt}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """From the hub's database."""
        super().load_state(state)
        known = state.get("carrel") or {}
        self._session_id, self._attempt = known.get("session"), known.get("attempt", 0)

    def clear_state(self) -> None:
        """There is no session any more."""
        super().clear_state()
        self._session_id, self._attempt = None, 0
        self._forget_lab()

    # ---- start, poll, stop

    async def start(self) -> tuple[str, int]:
        """Start a session, wait for it, and tell it what the hub has for it. Raises `LabRefused` with the lab's words."""
        if self.args:
            self.log.warning("CarrelSpawner: `args` has no meaning: the lab starts JupyterLab in its own way.")
        if self.disable_user_config:
            self.log.warning(
                "CarrelSpawner: `disable_user_config` has no meaning: a session's server and kernels are its user's."
            )
        try:
            return await self._start()
        except CarrelError as error:
            raise refused(error) from error

    async def _start(self) -> tuple[str, int]:
        request = session_request(
            address=self._address(),
            name=f"jupyterhub {self.name}".strip()[:255],
            directory=self.format_string(self.notebook_dir) if self.notebook_dir else None,
            defaults=self.session_defaults,
            options=self.user_options,
            cpu_limit=self.cpu_limit,
            memory_limit=self.mem_limit,
        )
        self._tell(Step(5, "Asking the lab for a session."))
        await self._end_leftovers()
        session = await self._submit(request)
        session = await self._until(session, lambda view: view.ready)
        self._attempt = session.job.attempt
        if session.host and self.ip not in _EVERYWHERE:
            raise LabRefused(
                f"Session {session.job.id} runs on a node of a cluster, at {session.host}, and cannot listen on {self.ip} there. "
                'An administrator of the hub can set c.CarrelSpawner.ip = "0.0.0.0".'
            )
        variables = variables_for(self.get_env(), self.environment)
        port = await self._ask(lambda lab: lab.join_hub(session.job.id, variables))
        self._tell(Step(80, f"Session {session.job.id} starts JupyterLab."))
        host = session.host or await self._host()
        await self._until_up(session, host, port)
        return host, port

    async def poll(self) -> int | None:
        """None while the session waits or runs, and while nobody knows; else how it ended."""
        known = self._session_id
        if known is None:
            return 0
        try:
            session = await self._ask(lambda lab: lab.session(known))
        except NotFound:
            self.log.warning("The lab does not know session %d of %s any more.", known, self._log_name)
            return 1
        except CarrelError as error:
            # No answer is no evidence that it ended, and neither is a token that is not valid any more.
            self.log.warning("Session %d of %s cannot be looked at: %s", known, self._log_name, error)
            return None
        if self._attempt and session.job.attempt != self._attempt and not session.job.ended:
            self.log.warning("Session %d of %s was started again by the lab; the hub starts another.", known, self._log_name)
            await self._ask(lambda lab: lab.cancel(known))
            return 1
        return exit_code(session)

    async def stop(self, now: bool = False) -> None:  # noqa: ARG002 - JupyterHub calls it so
        """End the session, and return when it has ended."""
        known = self._session_id
        if known is not None:
            try:
                await self._ask(lambda lab: lab.cancel(known))
                session = await self._ask(lambda lab: lab.session(known))
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._until(session, lambda view: view.job.ended)
            except (NotFound, Conflict):
                pass  # it is over already
            except TimeoutError as error:
                raise Unavailable(f"Session {known} has not ended.", remedy=f"See `carrel show {known}`.") from error
        await self._end_leftovers()

    # ---- what the user sees

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """The lab's own messages, as long as the server starts."""
        told: Step | None = None
        while True:
            news = self._news
            if told != self._step and self._step.message:
                told = self._step
                yield {"progress": told.progress, "message": told.message}
            else:
                await news.wait()

    async def _offered(self) -> str:
        """The form with what the lab has for this user."""
        try:
            offer = await self._ask(_offer)
        except CarrelError as error:
            raise refused(error) from error
        return form.render(offer, self.session_defaults)

    def _tell(self, news: Step) -> None:
        if news != self._step:
            self._step = news
            told, self._news = self._news, asyncio.Event()
            told.set()

    # ---- waiting

    async def _until(self, session: v1.SessionView, done: Callable[[v1.SessionView], bool]) -> v1.SessionView:
        """Look at a session until it is as wanted. Raises `LabRefused` when it ends first, and waits for a lab that is away."""
        pause = _FIRST_LOOK
        while not done(session):
            if session.job.ended:
                raise ended(session)
            self._tell(step(session))
            await asyncio.sleep(pause)
            before, session = session.job.state, await self._look(session)
            pause = min(pause * 1.2, _LAST_LOOK) if session.job.state == before else _FIRST_LOOK
        return session

    async def _look(self, session: v1.SessionView) -> v1.SessionView:
        """How it is now, or as it was as long as the lab is away."""
        try:
            return await self._ask(lambda lab: lab.session(session.job.id))
        except Unavailable as error:
            self._tell(Step(self._step.progress, str(error)))
            return session

    async def _until_up(self, session: v1.SessionView, host: str, port: int) -> None:
        """Wait until the server answers: one that cannot start should say so at once, and not after the hub's patience."""
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{port}{self.server.base_url}api"
        async with httpx.AsyncClient(trust_env=False, timeout=5.0, verify=False) as http:
            while True:
                try:
                    await http.get(address)
                except httpx.HTTPError:
                    session = await self._look(session)
                    if session.job.ended:
                        raise ended(session) from None
                    await asyncio.sleep(_FIRST_LOOK)
                else:
                    return

    # ---- the lab

    async def _ask(self, question: Callable[[Client], T]) -> T:
        """Ask the lab as this user, in another thread: the hub has one for everybody."""
        loop = asyncio.get_running_loop()
        if self._lab is None:
            token = await self._token()
            self._lab = await loop.run_in_executor(self._threads, lambda: Client(url=self.lab_url or None, token=token))
        lab = self._lab
        try:
            return await loop.run_in_executor(self._threads, question, lab)
        except Unauthenticated:
            self._forget_lab()  # the next question asks for the token again
            raise

    async def _token(self) -> str:
        who = self.user.name
        found = self.token_of.get(who) if isinstance(self.token_of, Mapping) else await maybe_future(self.token_of(self))
        if not isinstance(found, str) or not found.strip():
            raise Unauthenticated(
                f"The hub has no token of the lab for {who}.",
                remedy="Ask its administrator to add one to `c.CarrelSpawner.token_of`.",
            )
        return found.strip()

    def _forget_lab(self) -> None:
        lab, self._lab = self._lab, None
        if lab is not None:
            lab.close()

    async def _submit(self, request: v1.SessionRequest) -> v1.SessionView:
        """Ask for the session, and know its number even when the hub gives up at this very moment: then it has to be ended."""
        asked = asyncio.ensure_future(self._ask(lambda lab: lab.start_session(request)))
        try:
            session = await asyncio.shield(asked)
        except asyncio.CancelledError:
            self._session_id = (await asked).job.id
            raise
        self._session_id = session.job.id
        return session

    async def _end_leftovers(self) -> None:
        """End sessions of this server that an earlier life of the hub started and did not write down."""
        address = self._address()

        def end(lab: Client) -> list[int]:
            left = [session.job.id for session in lab.sessions() if session.hub == address and session.job.id != self._session_id]
            for job_id in left:
                lab.cancel(job_id)
            return left

        for job_id in await self._ask(end):
            self.log.warning("Session %d of %s was left over, and is ended.", job_id, self._log_name)

    def _address(self) -> str:
        """The address of this server at the hub, which is another one at every hub."""
        if self.public_url:
            return str(self.public_url)
        hub = urlsplit(self.hub.api_url)
        if hub.hostname in (*_LOOPBACK, *_EVERYWHERE):
            hub = hub._replace(netloc=f"{socket.getfqdn()}:{hub.port or 80}")
        return str(url_path_join(f"{hub.scheme}://{hub.netloc}", self.user.base_url, url_escape_path(self.name), "/"))

    async def _host(self) -> str:
        """Where the hub's proxy reaches the session: at the address that it listens on, else where the lab is."""
        if self.ip not in _EVERYWHERE:
            return str(self.ip)
        return str(await self._ask(lambda lab: urlsplit(lab.url).hostname))


def _offer(lab: Client) -> form.Offer:
    nodes = lab.nodes()
    about = lab.lab()
    return form.Offer(
        environments=[environment.name for environment in lab.environments().environments],
        gpus=max((len(node.devices) for node in nodes), default=0),
        simulated=about.simulated,
        qos=[qos.name for qos in about.qos if "session" in qos.kinds],
    )


__all__ = ["CarrelSpawner", "LabRefused"]
