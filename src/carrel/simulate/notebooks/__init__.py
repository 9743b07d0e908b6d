"""How many GPUs a lab of notebooks needs, by when a notebook gives its GPU back."""
