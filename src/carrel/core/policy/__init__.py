"""Pure decisions: what starts where, what waits and why. No clock, no I/O; `docs/scheduling.md` explains the rules."""
