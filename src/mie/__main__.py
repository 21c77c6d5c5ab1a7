"""`python -m mie` is the command."""

from mie.cli import main

if __name__ == "__main__":
    main()
