"""A lab with a virtual clock: recorded or generated work, run through the lab's own policy and through others, and compared."""
