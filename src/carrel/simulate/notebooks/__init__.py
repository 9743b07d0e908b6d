"""How many GPUs a lab of notebooks needs where the broker's own policy lends them for each cell."""
