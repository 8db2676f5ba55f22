"""`python -m adte` is `adte`."""

from adte.cli import main

if __name__ == "__main__":
    main(prog_name="adte")
