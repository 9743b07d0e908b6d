"""The nouns of a lab, as frozen values. Standard library only; no clock, no I/O, no framework."""
