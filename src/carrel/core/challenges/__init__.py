"""Challenges: their description, their boards, and what is left of a team's limits. Pure; the caller reads files."""
