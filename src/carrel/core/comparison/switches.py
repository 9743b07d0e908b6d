"""Switches of the task itself that stand beside the variables of its command."""

DETERMINISTIC, ORDER_OF_SAMPLES = "deterministic", "order of samples"
