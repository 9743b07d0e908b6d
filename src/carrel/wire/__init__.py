"""Versioned request and response models: the only place where pydantic lives.

Clients know this room and `carrel.client`, nothing else of the lab. Unknown fields in a request are refused by name;
unknown fields in a response are ignored, so that an older client understands a newer lab.
"""

from carrel.wire.needs import add_packages

add_packages()  # a task may import this room before it has asked for the client
