"""A model over the lines of a file, in order, of which a few thousand at a time are under way:

python -m examples.map_file http://127.0.0.1:8000 language texts.txt > languages.txt

Killed and started again, it asks for no line a second time.
"""

import os
import sys
from pathlib import Path

from batch_inference_client import Client, JobError

if __name__ == "__main__":
    url, model, path = sys.argv[1:]
    with Client(url, os.environ.get("INFERENCE_API_KEY", "")) as client, Path(path).open() as file:
        lines = (line.rstrip("\n") for line in file)
        for answer in client.map(model, lines, name=f"{model}-{Path(path).name}"):
            print(f"# {answer}" if isinstance(answer, JobError) else answer)
