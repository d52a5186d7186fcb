"""`python -m tests.clients`: writes docs/reference/clients.md. The clients have environments of their own."""

import sys

from tests import program

if __name__ == "__main__":
    sys.exit(program.run("tests.clients.command"))
