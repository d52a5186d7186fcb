"""`python -m tests.faults`: plays the faults of the matrix against the running service."""

import sys

from tests import program

if __name__ == "__main__":
    sys.exit(program.run("tests.faults.command"))
