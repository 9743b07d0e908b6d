"""Bringing inputs: from where they are to where a task wants them, with their digests.

`fetching` is what others call; each kind of address has a module. Nothing here is imported before an input needs it.
"""
