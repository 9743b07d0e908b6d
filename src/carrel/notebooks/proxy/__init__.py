"""The way from a browser to a session: host names, tickets, cookies, forwarding."""

from carrel.notebooks.proxy.door import Door, lab_path
from carrel.notebooks.proxy.hosts import SessionHosts
from carrel.notebooks.proxy.reach import base_url, takes_connections, transport
from carrel.notebooks.proxy.sessions import Session, Sessions

__all__ = ["Door", "Session", "SessionHosts", "Sessions", "base_url", "lab_path", "takes_connections", "transport"]
