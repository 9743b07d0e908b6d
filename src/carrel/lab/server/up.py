"""`carrel up`: one lab, from its settings to its last signal."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carrel.core.control.lab import Lab
from carrel.core.control.rules import RuleBook
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.units import format_size
from carrel.core.spool import Spool
from carrel.lab.gateway.app import create_app
from carrel.lab.gateway.comparing import no_metrics
from carrel.lab.gateway.context import TrackingStatus
from carrel.lab.gateway.settings import GatewaySettings
from carrel.lab.server.addresses import read_from
from carrel.lab.server.engine_factories import reasons
from carrel.lab.server.home import LabHome
from carrel.lab.server.home_location import check
from carrel.lab.server.log import log_to
from carrel.lab.server.network import BehindProxy, certified, names, warnings
from carrel.lab.server.notebooks import Notebooks
from carrel.lab.server.opening import RunningLab, body_socket, open_lab
from carrel.lab.server.rules_file import RulesFile
from carrel.lab.server.serving import Server, listen, name_of
from carrel.lab.server.settings import Settings, settings_of
from carrel.lab.server.sign_in import portal_of
from carrel.lab.server.tls import Certificate
from carrel.lab.server.toml import read_toml
from carrel.lab.server.tracking import Tracking
from carrel.lab.server.whose_code import check_safe
from carrel.lab.signin import Issuer
from carrel.lab.store import Store
from carrel.lab.studies import OptunaStudy
from carrel.node.environments.named import NamedEnvironments

if TYPE_CHECKING:
    from carrel.lab.server.authority import Authority


_log = logging.getLogger(__name__)


def run(
    *,
    home: Path,
    options: Mapping[str, Any],
    moved: bool = False,
    strict: bool = True,
    say: Callable[[str], None] = print,
) -> int:
    """Run a lab in the foreground until SIGINT or SIGTERM; return the exit code.

    `options` are settings from the command line, by name. `moved`: the home is not where it was, and is the same lab. Raises
    `Conflict` when a lab runs in `home` already, or when the home is elsewhere and was not `moved`, and for `strict` `Denied`
    when other Unix users could change it.
    """
    place_ = LabHome(home.expanduser().absolute())

    def read() -> Settings:
        return of_tables(read_toml(place_.settings), str(place_.settings))

    def of_tables(tables: dict[str, Any], where: str) -> Settings:
        settings = settings_of(tables, where, os.environ, options)
        check_safe(settings)
        return settings

    if strict:
        place_.check()  # before its settings are believed
    settings = read()
    certificate = Certificate(Path(settings.tls_certificate), Path(settings.tls_key)) if settings.tls_certificate else None
    authority: Authority | None = None
    place_.create()
    if strict:
        place_.check()
    log_to(place_.logs / "server.log")
    lock = place_.lock()
    try:
        check(place_, moved=moved)
        with contextlib.closing(listen(settings, place_.read_port())) as listener:
            url = f"http://{name_of(settings.host)}:{listener.getsockname()[1]}"
            if certificate is not None:
                url = settings.public_url.rstrip("/")
            elif settings.tls_own:
                from carrel.lab.server.authority import Authority, local_names

                url = (settings.public_url or f"https{url.removeprefix('http')}").rstrip("/")
                authority = Authority(place_.tls, [*certified(url, settings.session_host, settings.slurm_url), *local_names()])
                certificate = Certificate(authority.certificate, authority.key, authority.renew)
            written = RulesFile(place_.settings, lambda tables, where: of_tables(tables, where).rules)
            rules = RuleBook(settings.rules, reread=lambda: read().rules, written=written)
            return _serve(place_, settings, rules, listener, url, say, certificate, authority)
    finally:
        os.close(lock)


def _serve(
    home: LabHome,
    settings: Settings,
    rules: RuleBook,
    listener: socket.socket,
    url: str,
    say: Callable[[str], None],
    certificate: Certificate | None = None,
    authority: Authority | None = None,
) -> int:
    """Bring the parts up, serve until a signal comes, take them down."""
    running = open_lab(home, settings, url, rules, authority)
    tracking = Tracking(home=home.path, store=running.store, lab=running.lab) if settings.tracking else None
    portal = portal_of(running.store, running.lab, url, settings, running.audit)
    environments = NamedEnvironments(home.environments, walls=running.isolation)
    environments.set_quota(settings.environment_quota)
    notebooks = _notebooks(running, environments) if settings.sessions else None
    app = create_app(
        running.lab,
        settings=GatewaySettings(
            uploads=home.snapshots,
            templates=home.path / "templates",
            git_hosts=settings.git_hosts,
            home=home.path,
            calls=home.calls,
            body_socket=body_socket(home),
            max_snapshot=settings.snapshot_limit,
            waiting_calls=settings.waiting_calls,
            rate_limit=settings.rate_limit,
            rate_burst=10 * settings.rate_limit,
            names=names(settings.public_url, settings.slurm_url, url),
            authority=authority.text if authority is not None else "",
            public_url=settings.public_url,
            cluster_url=settings.slurm_url or "",
            audit_reads=settings.audit_reads,
            reasons=reasons(),
        ),
        snapshots=running.code,
        run_of=running.store.outbox.run_of,
        tracking_status=tracking.status if tracking else lambda: TrackingStatus(state="off"),
        tracking_proxy=tracking.proxy if tracking else None,
        run_metrics=tracking.metrics if tracking else no_metrics,
        pages=portal,
        environments=environments,
        walls=running.isolation,
        audit=running.audit,
        issuer=issuer_of(running.lab, running.store),
        calls=running.store.calls,
        sweeps=(running.store.sweeps, OptunaStudy()),
        baseline_store=running.store.baselines,
        challenges=(running.store, home.challenges, home.files),
        sessions=notebooks.sessions if notebooks else None,
    )
    if tracking:
        tracking.proxy.hear = app.state.gateway.hear_metrics
    try:
        running.lender.notify(running.loop.look_again)
        running.lender.keep(running.lab.cells.keep)
        running.lender.start()
        running.storage.subscribe(running.loop.look_again)
        running.storage.start()
        running.loop.start()
        running.fabric.start(running.loop.uses, running.loop.look_again)
        running.watch.start()
        # From here on: what an earlier server has charged is known.
        running.lender.charge(running.borrowing.report)
        running.retention.start()
        running.reports.start(partial(running.borrowing.report, cluster=True))
        signal.signal(signal.SIGHUP, lambda *_: _reload(running))
        if notebooks:
            notebooks.start()
        if tracking:
            tracking.start()
        link = portal.link(running.lab.authenticate(home.token.read_text().strip()))
        front = notebooks.in_front_of(app, app.state.conversations) if notebooks else app
        server = Server(
            app,
            BehindProxy(front, settings.proxy_secret) if settings.proxy_secret else front,
            listener,
            ready=lambda: _announce(running, f"{(settings.public_url or url).rstrip('/')}{link}", say, authority),
            certificate=certificate,
            connection_limit=settings.connection_limit,
            proxied=bool(settings.proxy_secret),
            closing=[part.aclose for part in (tracking.proxy if tracking else None, notebooks) if part is not None],
        )
        server.run()
        say("Stopping. Tasks go on; `carrel up` finds them again.")
        return 0
    finally:
        if tracking:
            tracking.close()
        if notebooks:
            notebooks.close()
        running.close()
        home.address.unlink(missing_ok=True)


def _say_isolation(running: RunningLab, say: Callable[[str], None]) -> None:
    people = running.lab.users.count()
    fact, remedy = running.isolation.describe(people)
    say(f"  isolation {fact}")
    if remedy:
        say(f"            ({remedy})")
    _log.log(logging.WARNING if remedy else logging.INFO, "Isolation: %s. %s", fact, remedy)


def _reload(running: RunningLab) -> None:
    """SIGHUP: the rules as they are written now, as daemons do it. What is wrong with them is in the log."""
    try:
        changed = running.lab.administration.apply_rules()
    except CarrelError as error:
        _log.error("The rules were not reloaded, and are as before: %s", error)
    else:
        _log.info("The rules were reloaded: %s.", "they are in force" if changed else "nothing has changed")


def _notebooks(running: RunningLab, environments: NamedEnvironments) -> Notebooks:
    return Notebooks(
        lab=running.lab,
        spool=Spool(running.home.spool),
        files=running.home.files,
        secret=running.secret,
        pattern=running.settings.session_host,
        public_url=running.settings.public_url,
        check_environment=lambda owner, name: environments.check(owner, name, running.settings.default_environment),
        default_environment=running.settings.default_environment,
        lender=running.lender,
        nodes=running.reports.nodes,
        look_time=float(running.settings.session_look_time),
        found_idle=running.loop.found_idle,
        read_address=running.engines.addresses(read_from(Spool(running.home.spool))),
    )


def _announce(running: RunningLab, link: str, say: Callable[[str], None], authority: Authority | None) -> None:
    """The lab answers now: say so to people, and to programs through the address file."""
    said = {name: running.settings.values[name] for name in ("isolation", "job_network")}
    running.home.write_address(running.url, str(authority.path) if authority is not None else "", said)
    node = running.engine.nodes()[0]
    say(f"Carrel is up at {running.url}")
    _log.info("The lab is up at %s.", running.url)
    say(f"  home      {running.home.path}")
    say(f"  this node {node.cpus} CPU{'' if node.cpus == 1 else 's'}, {format_size(node.memory)}, {node.describe_gpus()}")
    for line in running.settings.left_out:
        say(f"  without   {line}")
        _log.info("Without %s.", line)
    settings = running.settings
    tls, proxy = settings.tls_own or bool(settings.tls_certificate), bool(settings.proxy_secret)
    for line in warnings(settings.host, tls=tls, public_url=settings.public_url, proxy=proxy):
        say(f"  warning   {line}")
        _log.warning("%s", line)
    if os.geteuid() == 0:
        line = "the lab runs as root, so its jobs read what root reads on this machine; start it as a user of its own"
        say(f"  root      {line}")
        _log.warning("Root: %s.", line)
    if not running.whose_code.strict:
        _say_isolation(running, say)
    for title, line in running.engines.state():
        say(f"  {title:<9} {line}")
        _log.info("%s: %s", title, line)
    if authority is not None:
        say(f"  trust     {authority.fingerprint}")
        say("            (the lab's own authority: `carrel login URL --trust FINGERPRINT` on other machines)")
    say(f"  pages     {link}")
    say("            (the link signs one browser in, once, within ten minutes)")
    say("  stop      Ctrl-C; running tasks go on")


def issuer_of(lab: Lab, store: Store) -> Issuer:
    """The issuer of a lab: it makes tokens of the lab's own people, in the lab's own store."""
    return Issuer(store=store.sign_ins, tokens=lab.tokens, find_user=lab.people.get, clock=lab.clock, secret=lab.secret)
