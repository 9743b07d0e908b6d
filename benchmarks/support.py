"""The package `support` of the tests, for the programs of this directory."""

from pathlib import Path

__path__ = [str(Path(__file__).parents[1] / "tests" / "support")]
