"""What every side knows: the values and rules of a lab, its decisions, what a task may ask for, and how code travels."""
