"""Lends the devices of one node to leases, in milliseconds, and moves residency."""
