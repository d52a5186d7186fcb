"""The shapes of this service's own answers, for the OpenAPI document: jobs, bulks, models and problems.

`api.answers.resources` makes most of them; a test holds both together.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.requests.bodies import PRIORITIES
from inference.models import Status

ANY = {"type": ["string", "number", "boolean", "object", "array", "null"], "items": {}}


@extend_schema_field(ANY)
class AnyValue(serializers.Field[Any, Any, Any, Any]):
    pass


@extend_schema_field({"type": "string", "format": "binary"})
class BinaryFile(serializers.FileField):
    """A file in a form. The generator of the document takes any other for the address of a file."""


class Shape(serializers.Serializer[None]):
    pass


class PrioritizedBody(Shape):
    service_tier = serializers.CharField(
        required=False, help_text="The priority: flex (low), default or priority (high)."
    )


class DeletedShown(Shape):
    id = serializers.CharField()
    object = serializers.CharField(help_text="job, file, response or chat.completion.deleted")
    deleted = serializers.BooleanField()


class FailureShown(Shape):
    code = serializers.CharField()
    detail = serializers.CharField()
    retryable = serializers.BooleanField(help_text="Whether a new job of the same inputs may succeed.")


class ListedJobShown(Shape):
    id = serializers.UUIDField()
    model = serializers.CharField()
    status = serializers.ChoiceField(Status.choices)
    priority = serializers.ChoiceField([(word, word) for word in PRIORITIES])
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)
    batch_size = serializers.IntegerField(allow_null=True, help_text="Items of the batch that it ran in.")
    attempts = serializers.IntegerField(help_text="Times that a replica took it.")
    request_id = serializers.CharField()
    bulk = serializers.UUIDField(allow_null=True)
    bulk_index = serializers.IntegerField(allow_null=True)
    error = FailureShown(allow_null=True)


class JobShown(ListedJobShown):
    output = AnyValue(help_text="In the shape that Hugging Face clients expect; null until the job has succeeded.")
    position = serializers.IntegerField(required=False, help_text="1 is the next; while it is queued.")
    estimated_wait_s = serializers.FloatField(required=False, allow_null=True, help_text="While it is queued.")
    was_running = serializers.BooleanField(required=False, help_text="Of a cancelled job: its batch ran to its end.")


class PagedJobShown(ListedJobShown):
    output = AnyValue(required=False, help_text="If the request asked for it.")


class JobPageShown(Shape):
    items = PagedJobShown(many=True)
    next = serializers.CharField(allow_null=True, help_text="Address of the next page.")


class MissingJobShown(Shape):
    id = serializers.UUIDField()
    code = serializers.CharField(help_text="job_not_found or job_gone.")


class FinishedShown(Shape):
    items = JobShown(many=True, help_text="Finished jobs, with outputs of 4 MB at most.")
    missing = MissingJobShown(many=True, help_text="Those that are not there, or not yours.")
    left = serializers.IntegerField(help_text="Of the other ids: to be asked for again.")


class LimitsShown(Shape):
    max_batch_size = serializers.IntegerField(help_text="Inputs of one batch: a longer list runs in parts.")
    max_length = serializers.IntegerField(allow_null=True, help_text="Tokens of one input.")
    time_limit_s = serializers.FloatField()
    max_queued = serializers.IntegerField()


class EntryShown(Shape):
    model = serializers.CharField(help_text="Its weights, or its engine.")
    revision = serializers.CharField(allow_null=True)
    state = serializers.CharField(help_text="ready, loading, not loaded, draining, or failed.")
    why = serializers.CharField(allow_null=True, help_text="Why it failed.")
    workers = serializers.IntegerField(help_text="Living workers that have it so.")


class ServedShown(Shape):
    workers = serializers.IntegerField(help_text="Living workers that serve it.")
    memory_bytes = serializers.IntegerField(
        allow_null=True, help_text="In each replica; measured, or estimated before a lazy model was loaded first."
    )
    queued = serializers.IntegerField(help_text="Jobs that wait, counted up to max_queued.")
    items_per_s = serializers.FloatField(allow_null=True, help_text="Measured, of all replicas together.")
    note = serializers.CharField(allow_null=True, help_text="How its inputs run together, if not in padded batches.")
    entries = EntryShown(many=True, help_text="What workers have of it: two while a new revision is loaded.")


class ModelShown(Shape):
    name = serializers.CharField()
    task = serializers.CharField(allow_blank=True)
    model = serializers.CharField(allow_blank=True)
    revision = serializers.CharField(allow_null=True, help_text="As models.toml says now.")
    default_for = serializers.ListField(child=serializers.CharField(), help_text="Requests that may name no model.")
    limits = LimitsShown()
    parameters = serializers.DictField(child=serializers.DictField())
    served = ServedShown()


class OpenAIModelShown(Shape):
    id = serializers.CharField()
    object = serializers.CharField()
    created = serializers.IntegerField()
    owned_by = serializers.CharField()
    task = serializers.CharField(allow_blank=True)


class OneModelShown(ModelShown, OpenAIModelShown):
    """Show a model to clients of the service and to OpenAI's."""


class ModelsShown(Shape):
    items = ModelShown(many=True)
    object = serializers.CharField()
    data = OpenAIModelShown(  # type: ignore[assignment]  # a field, which its class takes away
        many=True, help_text="Those that OpenAI's clients can call, as these read them."
    )


class BulkJobShown(Shape):
    index = serializers.IntegerField()
    id = serializers.UUIDField()


class BulkErrorShown(Shape):
    index = serializers.IntegerField()
    job = serializers.UUIDField(allow_null=True, help_text="Null for an input that was refused.")
    code = serializers.CharField()
    detail = serializers.CharField()


class BulkShown(Shape):
    id = serializers.UUIDField()
    model = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished = serializers.BooleanField()
    total = serializers.IntegerField(help_text="Inputs posted.")
    rejected = serializers.IntegerField(help_text="Inputs refused.")
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="Jobs by status.")
    errors = BulkErrorShown(many=True, help_text="The first hundred, by index.")  # type: ignore[assignment]  # a field
    request_id = serializers.CharField()


class AcceptedBulkShown(BulkShown):
    jobs = BulkJobShown(many=True)
    refused = BulkErrorShown(many=True, help_text="All inputs that were refused, by index.")


class FieldErrorShown(Shape):
    field = serializers.CharField()
    message = serializers.CharField()


class ProblemShown(Shape):
    """RFC 9457, with a stable code."""

    type = serializers.CharField(help_text="An address that describes the code.")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField(help_text="Stable.")
    error = serializers.CharField(help_text="The detail again, where Hugging Face clients read it.")
    request_id = serializers.CharField(allow_blank=True)
    # The types know only the property of serializers that has this name.
    errors = FieldErrorShown(many=True, required=False, help_text="What is wrong with which field.")  # type: ignore[assignment]
    job_id = serializers.UUIDField(required=False, help_text="A job that goes on, or that ended without output.")
    bulk_id = serializers.UUIDField(required=False, help_text="A bulk that may have been stored.")
    refused = BulkErrorShown(
        many=True, required=False, help_text="Of a bulk of which nothing was accepted: its inputs."
    )
    retryable = serializers.BooleanField(
        required=False, help_text="Of a job that ended without output: whether a new one of its inputs may succeed."
    )


class ProblemTypeShown(Shape):
    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    what_to_do = serializers.CharField()


class AliveShown(Shape):
    status = serializers.CharField()


class ReadyShown(Shape):
    ready = serializers.BooleanField()
    reasons = serializers.ListField(child=serializers.CharField(), help_text="Why not.")
