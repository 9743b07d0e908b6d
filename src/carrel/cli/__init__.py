"""The command line: thin over `carrel.Client`, and quick to start. Every command loads only what it needs."""
