"""The client on the command line: `python -m batch_inference_client`."""

import sys

from batch_inference_client.command import main

if __name__ == "__main__":
    sys.exit(main())
