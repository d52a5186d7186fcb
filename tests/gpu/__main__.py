"""`python -m tests.gpu`: checks the service on this host's GPU; with `--stand-in`, the check itself on a CPU."""

import sys

from tests import program

if __name__ == "__main__":
    sys.exit(program.run("tests.gpu.command"))
