"""Calls of litellm, by its providers."""

from __future__ import annotations

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
