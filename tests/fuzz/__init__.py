"""Generated hostile files, each read in a watched process. See `python -m tests.fuzz --help`."""
