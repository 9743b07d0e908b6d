"""Challenges: their description, their boards, what is left of a team's limits (pure), and where their versions lie."""
