"""What challenges are, who is first, and what is left of a team's limits. Pure; files are read by whoever calls."""
