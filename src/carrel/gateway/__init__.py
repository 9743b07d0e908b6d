"""REST and event stream over HTTP, behind one authorization gate; errors in one shape (RFC 9457)."""

from carrel.gateway.app import create_app
from carrel.gateway.context import Gateway, Pages, TrackingStatus
from carrel.gateway.gate import Grant
from carrel.gateway.settings import GatewaySettings

__all__ = ["Gateway", "GatewaySettings", "Grant", "Pages", "TrackingStatus", "create_app"]
