"""Text as it is generated: python -m examples.stream http://127.0.0.1:8000 "once upon a time" """

import os
import sys

from batch_inference_client import Client

if __name__ == "__main__":
    with Client(sys.argv[1], os.environ.get("INFERENCE_API_KEY", "")) as client:
        for event in client.stream("babble", sys.argv[2], parameters={"max_new_tokens": 30}):
            if event.kind == "restart":
                print("\nfrom the beginning:")
            print(event.text, end="", flush=True)
        print()
