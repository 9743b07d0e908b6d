"""How people prove who they are: by passwords, the accounts of the lab's machine (PAM), or through a provider."""

from carrel.lab.credentials.local import LocalSignIn, Proof
