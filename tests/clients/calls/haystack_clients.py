"""Calls of haystack and langchain-cohere."""

from __future__ import annotations

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
from harness import BASE, KEY, QUERY, TEXTS, are_vectors, call
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from langchain_cohere import CohereEmbeddings, CohereRerank

key = Secret.from_token(KEY)
documents = [Document(content=text) for text in TEXTS if text]
chat = OpenAIChatGenerator(model="story", api_base_url=f"{BASE}/v1", api_key=key, max_retries=0)
call("haystack", "OpenAIChatGenerator", lambda: chat.run([ChatMessage.from_user("hello")])["replies"])
text = OpenAITextEmbedder(model="embeddings", api_base_url=f"{BASE}/v1", api_key=key, max_retries=0)
call("haystack", "OpenAITextEmbedder", lambda: text.run("a")["embedding"], lambda vector: len(vector) == 384)
many = OpenAIDocumentEmbedder(model="embeddings", api_base_url=f"{BASE}/v1", api_key=key, max_retries=0)
call(
    "haystack",
    "OpenAIDocumentEmbedder",
    lambda: [each.embedding for each in many.run(documents)["documents"]],
    lambda found: are_vectors(found, 2),
)
for name, url in (("at the root", BASE), ("below a model", f"{BASE}/v1/models/embeddings")):
    where = {"api_type": "text_embeddings_inference", "api_params": {"url": url}, "token": key}
    one, several = HuggingFaceAPITextEmbedder(**where), HuggingFaceAPIDocumentEmbedder(**where)
    call(
        "haystack",
        f"HuggingFaceAPITextEmbedder {name}",
        lambda c=one: c.run("a")["embedding"],
        lambda vector: len(vector) == 384,
    )
    call(
        "haystack",
        f"HuggingFaceAPIDocumentEmbedder {name}",
        lambda c=several: [each.embedding for each in c.run(documents)["documents"]],
        lambda found: are_vectors(found, 2),
    )
ranker = HuggingFaceTEIRanker(url=BASE, token=key, top_k=2)
call(
    "haystack",
    "HuggingFaceTEIRanker",
    lambda: ranker.run(query=QUERY, documents=documents)["documents"],
    lambda found: len(found) == 2,
)
ranks = CohereRerank(model="ranker", cohere_api_key=KEY, base_url=BASE, top_n=1)
call(
    "langchain-cohere",
    "CohereRerank.rerank",
    lambda: ranks.rerank([text for text in TEXTS if text], QUERY),
    lambda found: len(found) == 1,
)
vectors = CohereEmbeddings(model="embeddings", cohere_api_key=KEY, base_url=BASE)
call("langchain-cohere", "CohereEmbeddings.embed_documents", lambda: vectors.embed_documents(TEXTS), are_vectors)
call(
    "langchain-cohere",
    "CohereEmbeddings.embed_query",
    lambda: vectors.embed_query("a"),
    lambda vector: len(vector) == 384,
)
