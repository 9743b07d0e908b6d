"""The lab's issuer over HTTP, as RFC 6749, 7009, 8414 and 8628 have it. What people see of it is `carrel.lab.portal.consent`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from carrel.core.domain.token import Token
from carrel.core.domain.user import Caller, User
from carrel.core.policy.access import CHOICES
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.signin import Granted, Issuer, Refused
from carrel.lab.signin.clients import find_client

router = APIRouter(include_in_schema=False, route_class=Endpoint)

METADATA = "/.well-known/oauth-authorization-server"
#: Addresses that programs ask; none of them needs a sign-in.
PUBLIC = frozenset({METADATA, "/oauth/device_authorization", "/oauth/token", "/oauth/revoke"})
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
#: Longest form: a few tokens.
_FORM = 8 * 1024
_FORM_TYPE = "application/x-www-form-urlencoded"
#: RFC 6749, 5.1.
_NOT_STORED = {"Cache-Control": "no-store", "Pragma": "no-cache"}
#: Answers after which a program asks again (RFC 8628, 3.5): nothing has happened that is worth a line.
_NO_NEWS = frozenset({"authorization_pending", "slow_down"})

Fields = dict[str, str]


@router.get(METADATA)
async def metadata(request: Request) -> Response:
    """Where the issuer's addresses are, and what it can (RFC 8414). It is the lab under the name by which it was asked."""
    base = str(request.base_url).rstrip("/")
    return JSONResponse(
        {
            "issuer": base,
            "token_endpoint": f"{base}/oauth/token",
            "device_authorization_endpoint": f"{base}/oauth/device_authorization",
            "revocation_endpoint": f"{base}/oauth/revoke",
            "response_types_supported": [],  # there is no authorization endpoint
            "grant_types_supported": [DEVICE_GRANT, "refresh_token"],
            "token_endpoint_auth_methods_supported": ["none"],
            "revocation_endpoint_auth_methods_supported": ["none"],
            "scopes_supported": list(CHOICES),
            "service_documentation": f"{base}/docs",
        }
    )


@router.post("/oauth/device_authorization")
async def device_authorization(request: Request) -> Response:
    """The codes with which a program waits for a person (RFC 8628, 3.1)."""

    def begin(issuer: Issuer, fields: Fields) -> dict[str, Any]:
        begun = issuer.begin_device(
            client_id=fields.get("client_id", ""),
            scope=fields.get("scope", ""),
            host=fields.get("device_name", ""),
            address=address_of(request),
        )
        page = f"{(_gateway(request).settings.public_url or str(request.base_url)).rstrip('/')}/device"
        return {
            "device_code": begun.device_code,
            "user_code": begun.user_code,
            "verification_uri": page,
            "verification_uri_complete": f"{page}?user_code={begun.user_code}",
            "expires_in": begun.expires_in,
            "interval": begun.interval,
        }

    return await _answer(request, "ask for a sign-in", begin)


@router.post("/oauth/token")
async def token(request: Request) -> Response:
    """Tokens for an approved device, or for a refresh token (RFC 6749, 3.2)."""

    def grant(issuer: Issuer, fields: Fields) -> dict[str, Any]:
        client_id, kind = fields.get("client_id", ""), fields.get("grant_type", "")
        if kind == DEVICE_GRANT:
            made = issuer.exchange_device(client_id=client_id, device_code=_needed(fields, "device_code"))
        elif kind == "refresh_token":
            tell_audit(request.scope, action="renew a sign-in")
            made = issuer.renew(
                client_id=client_id,
                refresh_token=_needed(fields, "refresh_token"),
                scope=fields.get("scope", ""),
                retry=request.headers.get("idempotency-key"),
            )
        else:
            known = f"{DEVICE_GRANT} and refresh_token"
            raise Refused("unsupported_grant_type" if kind else "invalid_request", f"The grant types are {known}.")
        _about(request, made.user, made.token)
        return _tokens(made)

    return await _answer(request, "sign in", grant)


@router.post("/oauth/revoke")
async def revoke(request: Request) -> Response:
    """End the sign-in of a token (RFC 7009). A token that is not known is as good as revoked."""

    def end(issuer: Issuer, fields: Fields) -> dict[str, Any]:
        ended = issuer.revoke(client_id=fields.get("client_id", ""), token=_needed(fields, "token"))
        if ended is not None:
            _about(request, *ended)
        return {}

    return await _answer(request, "end a sign-in", end)


def address_of(request: Request) -> str:
    """From where somebody asks."""
    return request.client.host if request.client is not None else ""


async def _answer(request: Request, deed: str, act: Callable[[Issuer, Fields], dict[str, Any]]) -> Response:
    tell_audit(request.scope, action=deed)
    issuer = _gateway(request).issuer
    assert issuer is not None  # without one nothing of this is there
    try:
        fields = await _fields(request)
        tell_audit(request.scope, client=find_client(fields.get("client_id")).id)
        return JSONResponse(await to_thread.run_sync(partial(act, issuer, fields)), headers=_NOT_STORED)
    except Refused as refused:
        if refused.error in _NO_NEWS:
            tell_audit(request.scope, line=False)
        tell_audit(request.scope, rule=refused.rule or refused.error)
        if refused.user is not None:
            _about(request, refused.user, None)
        body = {"error": refused.error, "error_description": _ascii(refused.message)}
        return JSONResponse(body, 401 if refused.error == "invalid_client" else 400, headers=_NOT_STORED)


async def _fields(request: Request) -> Fields:
    """The fields of the form, each there once (RFC 6749, 3.2). Raises `Refused`."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        raise Refused("invalid_request", f"The body has to be {_FORM_TYPE}.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM:
            raise Refused("invalid_request", "The form is too long.")
    try:
        pairs = parse_qsl(body.decode("utf-8"), strict_parsing=bool(body), keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise Refused("invalid_request", "The form cannot be read.") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise Refused("invalid_request", "A field is there twice.")
    return fields


def _needed(fields: Fields, name: str) -> str:
    if not fields.get(name):
        raise Refused("invalid_request", f"The field {name} is missing.")
    return fields[name]


def _tokens(made: Granted) -> dict[str, Any]:
    return {
        "access_token": made.access_token,
        "token_type": "Bearer",
        "expires_in": made.expires_in,
        "refresh_token": made.refresh_token,
        "scope": " ".join(made.scopes),
    }


def _about(request: Request, user: User, token: Token | None) -> None:
    tell_audit(request.scope, caller=Caller(user=user, token_id=None if token is None else token.id))


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _ascii(text: str) -> str:
    """Words as an error description may hold them (RFC 6749, 5.2)."""
    return "".join(char if " " <= char <= "~" and char not in '"\\' else "'" if char == '"' else "?" for char in text)
