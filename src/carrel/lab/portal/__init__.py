"""Plain server-rendered pages: the lab's devices, jobs, logs and outputs. They work without scripts, and are live with them."""

from carrel.lab.portal.portal import Portal
from carrel.lab.portal.signin import Sessions, Tickets
