"""submitit's `core`."""
