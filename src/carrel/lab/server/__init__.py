"""The composition root: settings, the home directory, and `carrel up`, which wires every room to the next by hand."""
