"""How people prove who they are to the lab itself: passwords, passkeys, and the accounts of its machine (PAM)."""

from carrel.credentials.local import LocalSignIn, Proof
from carrel.credentials.port import CredentialStore, NewPasskey, Passkey

__all__ = ["CredentialStore", "LocalSignIn", "NewPasskey", "Passkey", "Proof"]
