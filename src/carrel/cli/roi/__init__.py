"""`carrel report roi`: what the GPUs cost and were worth, as a page for people, as a table and as data for programs."""
