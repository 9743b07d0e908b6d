"""Public contract suites and builders: what a new engine, or a test of one, starts from."""
