"""python -m inference.client"""

import sys

from inference.client.command import main

if __name__ == "__main__":
    sys.exit(main())
