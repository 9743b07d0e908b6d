"""The lab's own OAuth 2.0 issuer: how programs get tokens of people who are signed in somewhere else.

`device` has the codes of the device flow (RFC 8628), `clients` who may ask, `issuer` what holds them together. Nothing here knows
HTTP.
"""

from carrel.lab.signin.issuer import Granted, Issuer
from carrel.lab.signin.refused import Refused
