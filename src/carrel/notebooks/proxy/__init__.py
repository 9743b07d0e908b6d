"""The way from a browser to a session: host names, tickets, cookies, forwarding."""

from carrel.notebooks.proxy.asking import ask
from carrel.notebooks.proxy.hosts import SessionHosts
from carrel.notebooks.proxy.reach import takes_connections
from carrel.notebooks.proxy.sessions import Session, Sessions
from carrel.notebooks.proxy.tickets import TicketIssuer, lab_path

__all__ = ["Session", "SessionHosts", "Sessions", "TicketIssuer", "ask", "lab_path", "takes_connections"]
