"""The lab's own OAuth 2.0 issuer: how programs get tokens of people who are signed in somewhere else.

`device` is the flow for machines without a browser (RFC 8628), `code` that for machines with one (RFC 6749 with RFC 7636 and
RFC 8252), `clients` who may ask, `issuer` what holds them together. Nothing here knows HTTP.
"""

from carrel.lab.signin.issuer import Granted, Issuer
from carrel.lab.signin.refused import Refused

__all__ = ["Granted", "Issuer", "Refused"]
