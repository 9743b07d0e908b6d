"""Versioned request and response models: the only place where pydantic lives.

Clients know this room and `carrel.client`, nothing else of the lab. Unknown fields in a request are refused by name;
unknown fields in a response are ignored, so that an older client understands a newer lab.
"""
