"""Notebooks and a queue of tasks on the same GPUs: what lending between them brings, and what it costs each."""
