"""What the lab does as its users: one process of each user's own, the deputy, submits their jobs and reads their files."""
