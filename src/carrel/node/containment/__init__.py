"""Walls around what is not the lab's: users' code sees the system, what it was given, and nothing of the lab or of others.

`walls` says what is seen, `entering` builds that from the kernel's namespaces in the process that becomes the command, and
`trial` says whether this machine can, by trying it.
"""
