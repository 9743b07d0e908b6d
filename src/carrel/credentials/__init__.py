"""How people prove who they are: by passwords, passkeys, the accounts of the lab's machine (PAM), or through a provider."""

from carrel.credentials.local import LocalSignIn, Proof
from carrel.credentials.port import CredentialStore, NewPasskey, Passkey

__all__ = ["CredentialStore", "LocalSignIn", "NewPasskey", "Passkey", "Proof"]
