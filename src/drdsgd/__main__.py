"""`python -m drdsgd` is the program `drdsgd`."""

from drdsgd.cli import main

if __name__ == "__main__":
    main()
