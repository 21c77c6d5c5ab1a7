"""`python -m mie` is the command."""

from __future__ import annotations

from mie.cli import main

if __name__ == "__main__":
    main()
