"""Files that travel with a promoted notebook. They import nothing of carrel and work on Python 3.9 and newer."""
