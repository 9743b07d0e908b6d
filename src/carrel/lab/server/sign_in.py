"""The ways of signing in that a lab offers."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from ctypes.util import find_library

from carrel.core.control.lab import Lab
from carrel.lab.audit import AuditLog
from carrel.lab.credentials import LocalSignIn
from carrel.lab.credentials.oidc import Client, Membership, Naming, OidcSignIn, Provider
from carrel.lab.credentials.oidc.failures import ProviderFailed
from carrel.lab.credentials.pam import PamService, PamSignIn
from carrel.lab.portal import Portal
from carrel.lab.portal.local import LocalPages
from carrel.lab.portal.oidc import BACK, OidcPage
from carrel.lab.portal.pam import PamPage
from carrel.lab.server.oidc_settings import OidcSettings
from carrel.lab.server.settings import Settings
from carrel.lab.server.sign_in_settings import PamSettings, SignInSettings
from carrel.lab.store import Store

_log = logging.getLogger(__name__)


def portal_of(store: Store, lab: Lab, url: str, settings: Settings, audit: AuditLog) -> Portal:
    """The pages, with every way of signing in that there is. `url` is where the lab is.

    Roles and accounts by groups of a provider that the lab has no more are taken back.
    """
    _take_back(store, settings.sign_in.oidc, audit)
    local = LocalSignIn(store=store.credentials, people=lab.people, tokens=lab.tokens, clock=time.time, monotonic=time.monotonic)
    first = [*_oidc(settings, store, lab, url)]
    return Portal(clock=time.time, first=first, ways=[*_pam(settings.sign_in, local, lab)], local=LocalPages(local))


def _oidc(settings: Settings, store: Store, lab: Lab, url: str) -> Iterator[OidcPage]:
    oidc: OidcSettings | None = settings.sign_in.oidc
    if oidc is not None:
        yield OidcPage(sign_in_of(oidc, store, lab, callback_of(settings.public_url or url)))


def _take_back(store: Store, oidc: OidcSettings | None, audit: AuditLog) -> None:
    taken = store.identities.take_back(but=oidc.issuer if oidc is not None else None)
    for subject in taken:
        _log.warning("%s has lost what groups of a provider gave them: the lab has it no more.", subject)
        audit.add({"action": "take back what groups gave", "result": "allowed", "rule": "sign_in.oidc", "resource": subject})


def callback_of(url: str) -> str:
    """Where the provider sends people back to: what is registered there."""
    return f"{url.rstrip('/')}{BACK}"


def sign_in_of(oidc: OidcSettings, store: Store, lab: Lab, redirect_uri: str) -> OidcSignIn:
    """The provider's people, as the settings have it."""
    client = Client(id=oidc.client_id, secret=oidc.secret())
    return OidcSignIn(
        provider=Provider(oidc.issuer, client, monotonic=time.monotonic),
        name=oidc.name,
        redirect_uri=redirect_uri,
        key=lab.secret,
        identities=store.identities,
        people=lab.people,
        clock=lab.clock,
        monotonic=time.monotonic,
        scopes=oidc.scopes,
        naming=Naming(claim=oidc.user_claim, domain=oidc.user_domain),
        membership=Membership(claim=oidc.groups_claim, roles=oidc.roles, accounts=oidc.accounts),
        enroll=lab.users.enroll if oidc.admit == "everybody" else None,
        links_by_name=oidc.link == "name",
    )


def describe_provider(settings: Settings, address: str | None) -> tuple[str, str, str]:
    """For `carrel doctor`: asks the provider what it is. "ok", "warn" or "fail"; what it says; and a remedy."""
    oidc: OidcSettings | None = settings.sign_in.oidc
    if oidc is None:
        return "ok", "People sign in through no provider (OpenID Connect).", ""
    back = callback_of(settings.public_url or address or f"http://127.0.0.1:{settings.port}")
    provider = Provider(oidc.issuer, Client(id=oidc.client_id), monotonic=time.monotonic)
    try:
        metadata, keys = provider.metadata(), provider.keys()
    except ProviderFailed as error:
        return (
            "fail",
            f"Nobody can sign in with {oidc.name} ({oidc.issuer}): {error}.",
            "Mend issuer in [sign_in.oidc], or the way to it (names, proxies, SSL_CERT_FILE for authorities of your own). "
            "Other ways of signing in work meanwhile.",
        )
    secret = "with a secret" if oidc.client_secret_file else "without a secret"
    who = "users of the lab" if oidc.admit == "known" else "everybody"
    said = f"{oidc.name} ({oidc.issuer}) answers: {len(keys.found)} keys, {', '.join(metadata.algorithms)}. {who.capitalize()} "
    said += f"may come in, as client {oidc.client_id}, {secret}."
    if oidc.client_secret_file and not {"client_secret_basic", "client_secret_post"} & set(metadata.auth_methods):
        return "fail", f"{said} But it takes no secret.", "Leave client_secret_file out, or have the provider allow it."
    missing = [one for one in oidc.scopes.split() if metadata.scopes is not None and one not in metadata.scopes]
    if missing:
        return "warn", f"{said} It does not announce the scopes {', '.join(missing)}.", "Leave them out, or set them up there."
    if metadata.challenge_methods is not None and "S256" not in metadata.challenge_methods:
        return "warn", f"{said} It does not announce PKCE with S256, which the lab uses.", "A newer version of it may."
    return "ok", said, f"It must know this address to send people back to: {back}"


def _pam(settings: SignInSettings, local: LocalSignIn, lab: Lab) -> Iterator[PamPage]:
    if settings.pam is None:
        return
    service = PamService(service=settings.pam.service, directory=settings.pam.directory)
    enroll = lab.users.enroll if settings.pam.admit == "everybody" else None
    yield PamPage(PamSignIn(pam=service, people=lab.people, local=local, enroll=enroll))


def describe(settings: Settings) -> tuple[str, str, str]:
    """For `carrel doctor`: "ok", "warn" or "fail"; by what people sign in; and a remedy."""
    ways = ["one-time link", "access token", "invitation", "password"]
    if settings.sign_in.oidc is not None:
        ways.insert(0, settings.sign_in.oidc.name)
    pam: PamSettings | None = settings.sign_in.pam
    if pam is not None:
        who = "users of the lab" if pam.admit == "known" else "everybody with an account"
        ways.append(f'account on this machine (PAM service "{pam.service}", {who})')
    said = f"People sign in by {', '.join(ways)}."
    if pam is not None and find_library("pam") is None:
        return "fail", f"{said} But libpam is not here.", "Install it (Debian: libpam0g), or leave [sign_in.pam] out."
    if pam is not None and os.geteuid() != 0:
        return (
            "warn",
            f"{said} Without root's rights pam_unix knows the password of the lab's own Unix user alone.",
            "Modules that ask a service (pam_sss, pam_krb5) know everybody's; else use another way.",
        )
    return "ok", said, ""
