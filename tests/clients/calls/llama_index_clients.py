"""Calls of llama-index."""

from __future__ import annotations

from typing import Literal

from harness import BASE, KEY, QUERY, TEXTS, are_vectors, call
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.llms.openai_like import OpenAILike
from llama_index.postprocessor.cohere_rerank import CohereRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference
from pydantic import BaseModel


class Colour(BaseModel):
    """The colour of a wall."""

    colour: Literal["red", "blue"]


llm = OpenAILike(model="story", api_base=f"{BASE}/v1", api_key=KEY, is_chat_model=True, max_retries=0)
call("llama-index", "OpenAILike.complete", lambda: str(llm.complete("once")))
call("llama-index", "OpenAILike.stream_complete", lambda: list(llm.stream_complete("once")))
calling = OpenAILike(
    model="decoder",
    api_base=f"{BASE}/v1",
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    max_retries=0,
)
call(
    "llama-index",
    "OpenAILike.as_structured_llm",
    lambda: calling.as_structured_llm(Colour).complete("hello").raw,
    lambda answer: answer.colour in ("red", "blue"),
)
like = OpenAILikeEmbedding(model_name="embeddings", api_base=f"{BASE}/v1", api_key=KEY, max_retries=0)
call(
    "llama-index",
    "OpenAILikeEmbedding.get_text_embedding_batch",
    lambda: like.get_text_embedding_batch(TEXTS),
    are_vectors,
)
for name, base in (("at the root", BASE), ("below a model", f"{BASE}/v1/models/embeddings")):
    tei = TextEmbeddingsInference(model_name="any", base_url=base, auth_token=KEY)
    call("llama-index", f"TextEmbeddingsInference {name}", lambda c=tei: c.get_text_embedding_batch(TEXTS), are_vectors)
    call(
        "llama-index",
        f"the same of a query {name}",
        lambda c=tei: c.get_query_embedding("a"),
        lambda vector: len(vector) == 384,
    )
nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS if text]
for name, base in (("at the root", BASE), ("below a model", f"{BASE}/v1/models/ranker")):
    tei = TextEmbeddingInference(model_name="any", base_url=base, auth_token=KEY, top_n=2)
    call(
        "llama-index",
        f"TextEmbeddingInference {name}",
        lambda c=tei: c.postprocess_nodes(nodes, QueryBundle(QUERY)),
        lambda found: len(found) == 2,
    )
ranks = CohereRerank(model="ranker", api_key=KEY, base_url=BASE, top_n=1)
call(
    "llama-index",
    "CohereRerank",
    lambda: ranks.postprocess_nodes(nodes, QueryBundle(QUERY)),
    lambda found: len(found) == 1,
)
