"""Engines start jobs on nodes and tell what becomes of them."""
