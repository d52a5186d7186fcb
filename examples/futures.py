"""Futures from a script: python -m examples.futures http://127.0.0.1:8000"""

import os
import sys

from batch_inference_client import Client

TEXTS = (
    "an apple a day keeps the doctor away",
    "yksi omena päivässä pitää lääkärin loitolla",
    "una mela al giorno toglie il medico di torno",
)

if __name__ == "__main__":
    with Client(sys.argv[1], os.environ.get("INFERENCE_API_KEY", "")) as client:
        futures = [client.submit("language", text) for text in TEXTS]
        for text, future in zip(TEXTS, futures, strict=True):
            print(f"{future.result(timeout=60)}: {text}")
