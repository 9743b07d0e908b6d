"""Sign-in through an upstream provider by OpenID Connect Core 1.0: the authorization code flow with PKCE."""

from carrel.credentials.oidc.people import Membership, Naming
from carrel.credentials.oidc.provider import Client, Provider
from carrel.credentials.oidc.sign_in import OidcSignIn

__all__ = ["Client", "Membership", "Naming", "OidcSignIn", "Provider"]
