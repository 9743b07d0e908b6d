"""One process group for one attempt: a leader beside the runner, an agent on each node, and what they say to each other."""
