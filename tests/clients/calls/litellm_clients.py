"""Calls of litellm, by its providers."""

from __future__ import annotations

import json
import time

import litellm
from harness import BASE, KEY, QUERY, TEXTS, are_vectors, call

litellm.suppress_debug_info = True
HELLO = [{"role": "user", "content": "hello"}]
for provider, base in (("openai", f"{BASE}/v1"), ("hosted_vllm", f"{BASE}/v1"), ("infinity", BASE)):
    call(
        "litellm",
        f"embedding({provider}/)",
        lambda p=provider, b=base: litellm.embedding(f"{p}/embeddings", TEXTS, api_base=b, api_key=KEY),
        lambda answer: are_vectors([each["embedding"] for each in answer.data]),
    )
for provider in ("openai", "hosted_vllm"):
    call(
        "litellm",
        f"completion({provider}/)",
        lambda p=provider: litellm.completion(f"{p}/story", HELLO, api_base=f"{BASE}/v1", api_key=KEY),
    )
RERANKERS = {
    "cohere": f"{BASE}/v2/rerank",
    "jina_ai": f"{BASE}/v1/rerank",
    "hosted_vllm": f"{BASE}/v1",
    "infinity": BASE,
}
for options, shown in (({"return_documents": False}, ", return_documents=False"), ({}, "")):
    for provider, base in RERANKERS.items():
        call(
            "litellm",
            f"rerank({provider}/{shown})",
            lambda p=provider, b=base, o=options: litellm.rerank(
                f"{p}/ranker", QUERY, TEXTS, top_n=2, api_base=b, api_key=KEY, **o
            ),
            lambda answer: len(answer.results) == 2,
        )
call(
    "litellm",
    "rerank(huggingface/)",
    lambda: litellm.rerank("huggingface/ranker", QUERY, TEXTS, top_n=2, api_base=BASE, api_key=KEY),
    lambda answer: len(answer.results) == 2,
)


def run_batch(provider: str) -> str:
    """Return the ids of the lines that were answered."""
    where = {"custom_llm_provider": provider, "api_base": f"{BASE}/v1", "api_key": KEY}
    body = {"model": "embeddings", "input": "a text"}
    lines = [{"custom_id": each, "method": "POST", "url": "/v1/embeddings", "body": body} for each in "abc"]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = litellm.create_file(file=("in.jsonl", content), purpose="batch", **where)
    batch = litellm.create_batch(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h", metadata=None, **where
    )
    while not batch.output_file_id and batch.status not in ("failed", "completed", "expired"):
        time.sleep(0.1)  # between two looks
        batch = litellm.retrieve_batch(batch.id, **where)
    found = litellm.file_content(batch.output_file_id, **where).content.splitlines()
    return "".join(sorted(json.loads(line)["custom_id"] for line in found))


for provider in ("openai", "hosted_vllm"):
    call(
        "litellm",
        f"create_file, create_batch, retrieve_batch, file_content ({provider})",
        lambda p=provider: run_batch(p),
        lambda found: found == "abc",
    )
