"""The Python client of the service. It needs the standard library and urllib3 only.

    from batch_inference_client import Client

    with Client("http://127.0.0.1:8000", key) as client:
        client.run("embeddings", "a text")
        client.embed("embeddings", ["a text", "another"])
        future = client.submit("embeddings", "a text")
        for event in client.stream("generator", "once upon a time"): ...
        for answer in client.map("embeddings", texts, name="tonight"): ...
        batch = client.create_batch("requests.jsonl", "/v1/embeddings")

Inside Django, `api.in_process_client` has the same client without HTTP.
"""

from batch_inference_client.client import BaseClient, Client
from batch_inference_client.errors import ClientError, JobError
from batch_inference_client.futures import JobFuture
from batch_inference_client.retrieval import Ranked
from batch_inference_client.service import StreamEvent

__all__ = ["BaseClient", "Client", "ClientError", "JobError", "JobFuture", "Ranked", "StreamEvent"]
