"""Shapes of bodies and answers in the words of OpenAI, Cohere and Text Embeddings Inference, for the OpenAPI document.

`api.requests` reads the bodies, and `api.answers` makes the answers.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.errors import cohere_tei
from api.openapi.answer_shapes import AnyValue, PrioritizedBody, Shape
from api.requests.dialects import base, cohere_embeddings, embeddings

NUMBERS = {"type": "array", "items": {"type": "number"}}
VECTORS = {"type": "array", "items": NUMBERS}
TOKEN_VECTORS = {"type": "array", "items": VECTORS}
_LABELS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["score", "label"],
        "properties": {"score": {"type": "number"}, "label": {"type": "string"}},
    },
}
PREDICTIONS = {"anyOf": [_LABELS, {"type": "array", "items": _LABELS}]}
_TEXT = {"type": "string"}


@extend_schema_field({"type": ["string", "array"], "items": _TEXT, "minItems": 1})
class Texts(AnyValue):
    """A text, or a list of one text or more."""


@extend_schema_field({"type": ["string", "array"], "items": {"type": ["string", "array"], "items": _TEXT}})
class TextsOrPairs(AnyValue):
    pass


@extend_schema_field({"type": "array", "minItems": 1, "items": {
    "oneOf": [_TEXT, {"type": "object", "required": ["text"], "properties": {"text": _TEXT}}]
}})  # fmt: skip
class RankedTexts(AnyValue):
    pass


@extend_schema_field({"type": ["string", "array"], "minItems": 1, "items": {
    "oneOf": [_TEXT, {"type": "object", "required": ["type", "text"], "properties": {"type": _TEXT, "text": _TEXT}}]
}})  # fmt: skip
class ModeratedTexts(AnyValue):
    pass


@extend_schema_field({"type": ["array", "string"], "items": {"type": "number"}})
class Vector(AnyValue):
    pass


_ELSE_ONE = "A name of GET /v1/models; else the only model of that kind, or the one that is marked as its default."
_BELOW = "Below a model any name but that of another model here."
_TRUNCATE = "False: a text that is too long is refused, and not cut."


class CoherePriority(serializers.IntegerField):
    def __init__(self, **options: Any) -> None:
        super().__init__(min_value=0, max_value=base.LAST, help_text=f"From {base.LOW_FROM} on: low.", **options)


class RerankBody(Shape):
    """Cohere, Jina, vLLM and infinity name the texts `documents`, and Text Embeddings Inference names them `texts`."""

    model = serializers.CharField(required=False, help_text=f"{_ELSE_ONE} {_BELOW}")
    query = serializers.CharField(allow_blank=True)
    documents = RankedTexts(required=False)
    texts = RankedTexts(required=False, help_text="In place of documents; the answer is a list then.")
    top_n = serializers.IntegerField(required=False, min_value=1)
    top_k = serializers.IntegerField(required=False, min_value=1, help_text="The same as top_n.")
    return_documents = serializers.BooleanField(required=False)
    return_text = serializers.BooleanField(required=False)
    raw_scores = serializers.BooleanField(required=False, help_text="Logits, and not their sigmoid.")
    priority = CoherePriority(required=False)
    truncate = serializers.BooleanField(required=False, help_text=_TRUNCATE)
    max_tokens_per_doc = serializers.IntegerField(required=False, min_value=1, help_text="Of each text that are read.")


class TokensShown(Shape):
    prompt_tokens = serializers.IntegerField(help_text="What the model read.")
    total_tokens = serializers.IntegerField()


class RankedTextShown(Shape):
    index = serializers.IntegerField(help_text="Of the text in the request.")
    relevance_score = serializers.FloatField()
    document = AnyValue(required=False)


class RankingShown(Shape):
    """The best comes first."""

    id = serializers.CharField()
    object = serializers.CharField()
    model = serializers.CharField()
    results = RankedTextShown(many=True)
    usage = TokensShown(required=False, help_text="Not of an engine of one's own that counts no tokens.")


class ScoredTextShown(Shape):
    """One of a list, in which the best comes first."""

    index = serializers.IntegerField(help_text="Of the text in the request.")
    score = serializers.FloatField()
    text = serializers.CharField(required=False, allow_blank=True)


class EmbeddingsBody(PrioritizedBody):
    """OpenAI's. Its other fields are taken where they ask for nothing: see docs/guide/embeddings.md."""

    model = serializers.CharField(required=False, help_text=f"{_ELSE_ONE} {_BELOW}")
    input = Texts()
    encoding_format = serializers.ChoiceField(embeddings.FORMATS, required=False)
    dimensions = serializers.IntegerField(required=False, min_value=0, help_text="0 asks for nothing.")
    input_type = serializers.CharField(
        required=False,
        help_text=f"query, document, classification, clustering, or {', '.join(embeddings.INPUT_TYPES)}.",
    )
    prompt_name = serializers.CharField(required=False, help_text="Of the model's folder.")


class EmbeddingShown(Shape):
    object = serializers.CharField()
    index = serializers.IntegerField()
    embedding = Vector(help_text="A list of numbers, or base64 of them as float32, the lowest byte first.")


class EmbeddingsShown(Shape):
    object = serializers.CharField()
    data = EmbeddingShown(many=True)  # type: ignore[assignment]  # a field, which its class takes away
    model = serializers.CharField()
    usage = TokensShown()


class ModerationBody(PrioritizedBody):
    """OpenAI's. Its other fields are taken where they ask for nothing."""

    model = serializers.CharField(required=False, help_text=_ELSE_ONE)
    input = ModeratedTexts(help_text="A text, a list of texts, or a list of parts of one text.")


class ModeratedTextShown(Shape):
    flagged = serializers.BooleanField(help_text="True if any category is.")
    categories = serializers.DictField(
        child=serializers.BooleanField(), help_text="By each label of the model that its table does not call harmless."
    )
    category_scores = serializers.DictField(child=serializers.FloatField())
    category_applied_input_types = serializers.DictField(child=serializers.ListField(child=serializers.CharField()))


class ModerationShown(Shape):
    id = serializers.CharField(help_text="modr- and the job's id.")
    model = serializers.CharField()
    results = ModeratedTextShown(many=True)


class CohereBody(Shape):
    model = serializers.CharField(required=False, help_text=_ELSE_ONE)
    texts = serializers.ListField(child=serializers.CharField(allow_blank=True), min_length=1)
    input_type = serializers.CharField(required=False, help_text="search_query, search_document, or another type.")
    embedding_types = serializers.ListField(child=serializers.ChoiceField(cohere_embeddings.FORMS), required=False)
    output_dimension = serializers.IntegerField(required=False, min_value=1)
    truncate = serializers.ChoiceField((cohere_embeddings.CUT, cohere_embeddings.WHOLE), required=False)
    priority = CoherePriority(required=False)


class CohereVersionShown(Shape):
    version = serializers.CharField()


class CohereUnitsShown(Shape):
    input_tokens = serializers.IntegerField(help_text="What the model read.")


class CohereMetaShown(Shape):
    api_version = CohereVersionShown()
    billed_units = CohereUnitsShown()


class CohereShown(Shape):
    id = serializers.CharField()
    response_type = serializers.CharField()
    texts = serializers.ListField(child=serializers.CharField(allow_blank=True))
    meta = CohereMetaShown()


class FirstCohereShown(CohereShown):
    embeddings = AnyValue(help_text="Vectors; where embedding_types were asked for, as /v2/embed answers.")


class SecondCohereShown(CohereShown):
    embeddings = serializers.DictField(child=serializers.ListField(child=Vector()), help_text="Vectors by type.")


class TeiBody(Shape):
    model = serializers.CharField(required=False, help_text=f"{_ELSE_ONE} {_BELOW}")


class TextSettings(Shape):
    prompt_name = serializers.CharField(required=False, help_text="Of the model's folder.")
    truncate = serializers.BooleanField(required=False, help_text="false: a text that is too long is refused.")


class TokensBody(TextSettings, TeiBody):
    inputs = Texts()


class EmbedBody(TokensBody):
    normalize = serializers.BooleanField(required=False, help_text="Vectors have length one unless this is false.")
    dimensions = serializers.IntegerField(required=False, min_value=1)


class SentencesShown(Shape):
    source_sentence = serializers.CharField(allow_blank=True)
    sentences = serializers.ListField(child=serializers.CharField(allow_blank=True), min_length=1)


class SimilarityBody(TeiBody):
    inputs = SentencesShown()
    parameters = TextSettings(required=False)


class PredictBody(TeiBody):
    inputs = TextsOrPairs(help_text="A text, two that are one pair, or a list of lists of one or two.")
    raw_scores = serializers.BooleanField(required=False, help_text="Logits.")
    truncate = serializers.BooleanField(required=False, help_text=_TRUNCATE)


class InfoShown(Shape):
    """A field that only the weights would tell is null or left out."""

    model_id = serializers.CharField(allow_blank=True)
    model_sha = serializers.CharField(allow_null=True)
    model_dtype = serializers.CharField(allow_null=True)
    model_type = serializers.DictField(child=serializers.DictField())
    max_concurrent_requests = serializers.IntegerField()
    max_input_length = serializers.IntegerField(allow_null=True)
    max_batch_tokens = serializers.IntegerField()
    max_batch_requests = serializers.IntegerField()
    max_client_batch_size = serializers.IntegerField()
    auto_truncate = serializers.BooleanField()
    tokenization_workers = serializers.IntegerField(allow_null=True)
    version = serializers.CharField(allow_null=True)
    sha = serializers.CharField(allow_null=True)
    docker_label = serializers.CharField(allow_null=True)


class UnhealthyShown(Shape):
    error = serializers.CharField()
    error_type = serializers.CharField()


class RetrievalProblemShown(Shape):
    """Cohere's clients look at `message`, those of Text Embeddings Inference at `error` and `error_type`."""

    message = serializers.CharField()
    error = serializers.CharField(help_text="The same.")
    error_type = serializers.ChoiceField(cohere_tei.ERROR_TYPES)
    code = serializers.CharField(help_text="Stable.")
    job_id = serializers.CharField(required=False, help_text="Of the job that has failed.")
