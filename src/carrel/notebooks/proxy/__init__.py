"""The way from a browser to a session: host names, tickets, cookies, forwarding."""

from carrel.notebooks.proxy.hosts import SessionHosts
from carrel.notebooks.proxy.reach import base_url, takes_connections, transport
from carrel.notebooks.proxy.sessions import Session, Sessions
from carrel.notebooks.proxy.tickets import TicketIssuer, lab_path

__all__ = ["Session", "SessionHosts", "Sessions", "TicketIssuer", "base_url", "lab_path", "takes_connections", "transport"]
