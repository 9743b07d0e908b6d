"""Sign-in through an upstream provider by OpenID Connect Core 1.0: the authorization code flow with PKCE."""

from carrel.lab.credentials.oidc.people import Membership, Naming
from carrel.lab.credentials.oidc.provider import Client, Provider
from carrel.lab.credentials.oidc.sign_in import OidcSignIn
