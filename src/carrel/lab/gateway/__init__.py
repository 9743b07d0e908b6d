"""REST and event stream over HTTP, behind one authorization gate; errors in one shape (RFC 9457)."""

from carrel.lab.gateway.app import create_app
from carrel.lab.gateway.context import Gateway, Pages, TrackingStatus
from carrel.lab.gateway.gate import Grant
from carrel.lab.gateway.settings import GatewaySettings
