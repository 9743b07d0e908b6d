"""What the tests and benchmarks stand on: real programs started, and fakes of what is not here."""
