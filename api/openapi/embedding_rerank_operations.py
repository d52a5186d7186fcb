"""The operations at the addresses of OpenAI, Cohere and Text Embeddings Inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import PolymorphicProxySerializer

from api import codec
from api.openapi import embedding_rerank_shapes as shapes
from api.openapi.answer_shapes import Shape
from api.openapi.operation_decorator import COHERE, OPENAI, TEI, describe_operation
from api.openapi.operations import IDEMPOTENCY_KEY, make_request_example, make_wait_parameter, waiting
from api.requests import bodies

_TEXTS = ["A cat sleeps.", "Stocks fell."]
dialect: dict[str, Any] = {
    **waiting,
    "parameters": [make_wait_parameter("timeout", bodies.MAX_WAIT_S, "the answer"), IDEMPOTENCY_KEY],
}
ranking: dict[str, Any] = {
    **dialect,
    "request": shapes.RerankBody,
    "examples": [
        make_request_example(f"As {name}", {"query": "a pet", name: _TEXTS}) for name in ("documents", "texts")
    ],
    "answers": {
        (200, codec.CONTENT_TYPE): PolymorphicProxySerializer(
            "Ranking",
            [shapes.RankingShown, shapes.ScoredTextShown(many=True)],
            resource_type_field_name=None,
            many=False,
        )
    },
}
rerank_below = describe_operation("models_rerank", "Rank texts by a query, with this model", form=TEI, **ranking)
rerank = describe_operation(
    "rerank_texts",
    "Rank texts by a query",
    form=COHERE,
    also_at=["/v2/rerank", "/openai/v1/rerank"],
    note="At `/openai/v1/rerank` problems have OpenAI's form.",
    **ranking,
)
rerank_at_root = describe_operation("rerank_texts_at_root", "Rank texts by a query", form=TEI, **ranking)
openai: dict[str, Any] = {
    **dialect,
    "form": OPENAI,
    "headers": {**dialect["headers"], "X-Should-Retry": [400, 409, 502, 504]},
}
openai_embeddings = describe_operation(
    "openai_embeddings",
    "Vectors of texts, as OpenAI's clients ask for them",
    request=shapes.EmbeddingsBody,
    examples=[make_request_example("Texts", {"model": "embeddings", "input": _TEXTS})],
    answers={(200, codec.CONTENT_TYPE): shapes.EmbeddingsShown},
    also_at=["/openai/v1/embeddings", "/embeddings", "/v1/models/{name}/v1/embeddings"],
    **openai,
)
moderate = describe_operation(
    "openai_moderations",
    "Tell harmful texts, as OpenAI's clients ask for it",
    request=shapes.ModerationBody,
    examples=[make_request_example("Texts", {"input": _TEXTS})],
    answers={(200, codec.CONTENT_TYPE): shapes.ModerationShown},
    also_at=["/openai/v1/moderations"],
    **openai,
)
cohere: dict[str, Any] = {
    **dialect,
    "request": shapes.CohereBody,
    "examples": [
        make_request_example("Texts", {"model": "embeddings", "texts": _TEXTS, "input_type": "search_document"})
    ],
    "form": COHERE,
}
cohere_embed_v1 = describe_operation(
    "cohere_embed_v1",
    "Vectors of texts, as Cohere's clients of version 1 ask for them",
    answers={(200, codec.CONTENT_TYPE): shapes.FirstCohereShown},
    **cohere,
)
cohere_embed_v2 = describe_operation(
    "cohere_embed_v2",
    "Vectors of texts, as Cohere's clients ask for them",
    answers={(200, codec.CONTENT_TYPE): shapes.SecondCohereShown},
    **cohere,
)


def describe_tei_operation(
    name: str,
    summary: str,
    request: type[Shape],
    answer: type[Shape] | dict[str, Any],
    *more: str,
    inputs: object = _TEXTS,
) -> Callable[..., Any]:
    """Describe an operation of Text Embeddings Inference at the root. It also exists below a model, and at `more`."""
    return describe_operation(
        f"tei_{name}",
        summary,
        request=request,
        answers={(200, codec.CONTENT_TYPE): answer},
        examples=[make_request_example("Texts", {"inputs": inputs})],
        form=TEI,
        also_at=[f"/v1/models/{{name}}/{name}", *more],
        **dialect,
    )


tei_embed = describe_tei_operation("embed", "Vectors of texts", shapes.EmbedBody, shapes.VECTORS, "/")
tei_embed_all = describe_tei_operation(
    "embed_all", "A vector of each token of texts", shapes.TokensBody, shapes.TOKEN_VECTORS
)
tei_similarity = describe_tei_operation(
    "similarity",
    "Cosines of a text with others",
    shapes.SimilarityBody,
    shapes.NUMBERS,
    inputs={"source_sentence": "a pet", "sentences": _TEXTS},
)
tei_predict = describe_tei_operation(
    "predict",
    "Labels of texts, the best first",
    shapes.PredictBody,
    shapes.PREDICTIONS,
    inputs=[[text] for text in _TEXTS],
)
tei_info = describe_operation(
    "tei_info",
    "What is known of the model that embeds, or of the one that classifies or ranks where none embeds",
    answers={200: shapes.InfoShown},
    problems=("unknown_model", "invalid_input", "models_file_refused"),
    headers={"Retry-After": [429, 503]},
    form=TEI,
    also_at=["/v1/models/{name}/info"],
)
tei_health = describe_operation(
    "tei_health",
    "Whether the service is ready; with nothing in the answer",
    answers={(200, "text/plain"): str, (503, codec.CONTENT_TYPE): shapes.UnhealthyShown},
    open_to_all=True,
)
