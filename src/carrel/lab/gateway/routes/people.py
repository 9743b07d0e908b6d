"""Users and their tokens."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from carrel.core.control.tokens import DEFAULT_LIFETIME, HANDED_OUT_LIFETIME, INVITED_FOR
from carrel.core.domain.errors import NotFound
from carrel.core.domain.nouns import TOKENS
from carrel.core.domain.token import MadeToken
from carrel.core.domain.user import Role, User
from carrel.lab.gateway.context import LARGEST, NO_ZERO, Base, Ctx, Gateway, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.views import moment, user_view
from carrel.wire.v1 import (
    API,
    Invitation,
    InvitationRequest,
    NewUser,
    RedeemRequest,
    ResetRequest,
    SessionLink,
    SuspendRequest,
    TokenRequest,
    UserChange,
    UserList,
    UserRequest,
    UserView,
    list_of,
    show,
)

router = APIRouter(prefix=API, tags=["people"], route_class=Endpoint)

Subject = Annotated[str, Path(max_length=255, pattern=NO_ZERO)]
TokenId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the token.")]
Programs = Annotated[bool, Query(alias="all", description="Also those as whom the programs of challenges run.")]
Everybody = Annotated[bool, Query(alias="all", description="Those of everybody (administrators).")]


@router.get("/users", summary="List users (administrators)")
def list_users(ctx: Ctx, who: Who, programs: Programs = False) -> UserList:
    """All people. With `all=true` also the users as whom the programs of challenges run."""
    return UserList(users=[_view(ctx, user) for user in ctx.lab.administration.users(who, programs=programs)])


@router.post("/users", status_code=201, summary="Add a user (administrators)")
def add_user(request: UserRequest, ctx: Ctx, who: Who, base: Base) -> NewUser:
    """The answer holds the user's token, which is not shown again."""
    lifetime = lifetime_of(request.expires_in, HANDED_OUT_LIFETIME)
    user, made, token = ctx.lab.users.add(
        who, request.name, Role(request.role), lifetime=lifetime, without_isolation=request.without_isolation
    )
    return NewUser(
        user=_view(ctx, user),
        token=token,
        expires_at=moment(made.expires_at),
        url=ctx.own_url(base),
        isolation=ctx.lab.users.about_isolation(),
    )


@router.post(
    "/users/{subject:path}/revoke", status_code=204, summary="End all tokens of a user (administrators)", response_class=Response
)
def revoke(subject: Subject, ctx: Ctx, who: Who) -> Response:
    """From now on nothing answers to the user's tokens, nor to those of jobs that they submitted before; what is open ends."""
    ctx.lab.users.revoke_tokens(who, subject)
    return Response(status_code=204)


@router.post("/users/{subject:path}/reset", summary="Give a user a new token in the place of all others (administrators)")
def reset(subject: Subject, request: ResetRequest, ctx: Ctx, who: Who, base: Base) -> NewUser:
    """For a token that was lost. The answer holds the new one, which is not shown again; what was open with the others ends."""
    lifetime = lifetime_of(request.expires_in, HANDED_OUT_LIFETIME)
    user, made, token = ctx.lab.users.reset(who, subject, lifetime=lifetime)
    return NewUser(user=_view(ctx, user), token=token, expires_at=moment(made.expires_at), url=ctx.own_url(base))


@router.post("/users/{subject:path}/suspend", summary="Accept and start nothing of a user's (administrators)")
def suspend(subject: Subject, request: SuspendRequest, ctx: Ctx, who: Who) -> UserChange:
    """What is open of theirs ends, and tokens of their jobs open nothing. Running jobs go on unless `cancel_running`; waiting
    jobs keep their place in line for later. The user sees the reason."""
    user, ended = ctx.lab.users.suspend(who, subject, request.reason, cancel_running=request.cancel_running)
    return UserChange(user=_view(ctx, user), cancelled=ended)


@router.post("/users/{subject:path}/resume", summary="Let a user go on who was suspended or removed (administrators)")
def resume(subject: Subject, ctx: Ctx, who: Who) -> UserChange:
    """Tokens that were revoked stay so."""
    return UserChange(user=_view(ctx, ctx.lab.users.resume(who, subject)))


@router.delete("/users/{subject:path}", summary="Remove a user (administrators)")
def remove(subject: Subject, ctx: Ctx, who: Who) -> UserChange:
    """Their tokens are void and their jobs end; their records stay, and nobody else gets the name."""
    user, ended = ctx.lab.users.remove(who, subject)
    return UserChange(user=_view(ctx, user), cancelled=ended)


@router.post("/invitations", status_code=201, summary="Invite somebody (administrators)")
def invite(request: InvitationRequest, ctx: Ctx, who: Who, base: Base) -> Invitation:
    """Adds them if there is nobody of this name. The answer holds a code that can be exchanged once; it is not shown again."""
    lifetime = INVITED_FOR if request.expires_in is None else request.expires_in
    user, made, code = ctx.lab.users.invite(
        who, request.name, Role(request.role), lifetime=lifetime, without_isolation=request.without_isolation
    )
    return Invitation(
        user=_view(ctx, user),
        code=code,
        expires_at=moment(made.expires_at),
        url=ctx.own_url(base),
        isolation=ctx.lab.users.about_isolation(),
    )


@router.post("/invitations/current/redeem", status_code=201, summary="Exchange an invitation for a token")
def redeem(request: RedeemRequest, ctx: Ctx, who: Who, base: Base) -> MadeToken:
    """Asked with the invitation's code as the access token. It is void from then on."""
    made, token = ctx.lab.tokens.redeem(who, name=request.name)
    return MadeToken(token=token, about=made, tracking_url=ctx.tracking_url(base))


@router.get("/tokens", summary="List one's tokens", response_model=list_of(TOKENS))
def list_tokens(ctx: Ctx, who: Who, everybody: Everybody = False) -> Any:
    """Also those that have expired or were revoked, but never a token itself."""
    return list_of(TOKENS)(tokens=[show(one) for one in ctx.lab.tokens.list(who, everybody=everybody)])


@router.post("/tokens", status_code=201, summary="Make a token")
def create_token(request: TokenRequest, ctx: Ctx, who: Who, base: Base) -> MadeToken:
    """For no more than the token that asks is good for. The answer holds it, and it is not shown again."""
    lifetime = lifetime_of(request.expires_in, DEFAULT_LIFETIME)
    made, token = ctx.lab.tokens.create(who, name=request.name, scopes=request.scopes, account=request.account, lifetime=lifetime)
    return MadeToken(token=token, about=made, tracking_url=ctx.tracking_url(base))


@router.delete("/tokens/current", status_code=204, summary="Revoke the token that asks", response_class=Response)
def revoke_current(ctx: Ctx, who: Who) -> Response:
    """Signing out: any token may do this to itself."""
    if who.token_id is None:
        raise NotFound("The token of a job ends with it.", remedy="Nothing is to be done.")
    ctx.lab.tokens.revoke(who, who.token_id)
    return Response(status_code=204)


@router.post("/tokens/current/link", summary="A link that signs one browser in to the pages, once")
def sign_in_link(ctx: Ctx, who: Who, base: Base) -> SessionLink:
    """The link is good for ten minutes. The browser may do what the token that asks is good for, and is signed out with it."""
    if ctx.pages is None:
        raise NotFound("This lab has no pages.")
    return SessionLink(url=ctx.own_url(base) + ctx.pages.link(who))


@router.delete("/tokens/{token_id}", status_code=204, summary="Revoke a token", response_class=Response)
def revoke_token(token_id: TokenId, ctx: Ctx, who: Who) -> Response:
    """One's own; administrators may revoke anybody's. It is void at once, and what was opened with it ends: browsers, pages of
    sessions, event streams."""
    ctx.lab.tokens.revoke(who, token_id)
    return Response(status_code=204)


def lifetime_of(asked: int | None, default: float) -> float | None:
    """Seconds for which a token holds; None: for ever."""
    return default if asked is None else asked or None


def _view(ctx: Gateway, user: User) -> UserView:
    return user_view(user, ctx.lab.policy.charged(user))
