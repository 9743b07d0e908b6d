"""The kernel hook: one file that is put in front of the user's own environment, and the kernel spec that does so."""
