"""Shapes of files and batches in OpenAI's words, for the OpenAPI document. `api.file_batches.documents` makes them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.file_batches.endpoints import ENDPOINTS
from api.models import BatchStatus
from api.openapi.answer_shapes import AnyValue, BinaryFile, Shape


class ExpiryBody(Shape):
    anchor = serializers.ChoiceField(["created_at"])
    seconds = serializers.IntegerField(min_value=3600, max_value=2_592_000)


class FileBody(Shape):
    file = BinaryFile(help_text="Lines of JSON, each with custom_id, method, url and body.")
    purpose = serializers.CharField(help_text="batch")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return the fields, also those whose names are no names of Python."""
        expiry = {f"expires_after[{name}]": field for name, field in ExpiryBody(required=False).get_fields().items()}
        for field in expiry.values():
            field.required = False
        return {**super().get_fields(), **expiry}


class FileShown(Shape):
    id = serializers.CharField()
    object = serializers.CharField(help_text="file")
    bytes = serializers.IntegerField()
    created_at = serializers.IntegerField()
    expires_at = serializers.IntegerField(allow_null=True)
    filename = serializers.CharField()
    purpose = serializers.CharField(help_text="batch, or batch_output of the files of answers.")
    status = serializers.CharField(help_text="processed")
    status_details = serializers.CharField(allow_null=True)


class FilePageShown(Shape):
    object = serializers.CharField(help_text="list")
    data = FileShown(many=True)  # type: ignore[assignment]  # DRF's own property of that name
    first_id = serializers.CharField(allow_null=True)
    last_id = serializers.CharField(allow_null=True)
    has_more = serializers.BooleanField()


class BatchBody(Shape):
    input_file_id = serializers.CharField(help_text="The id of a file with the purpose batch.")
    endpoint = serializers.ChoiceField(list(ENDPOINTS))
    completion_window = serializers.CharField(help_text="24h, or other hours or minutes such as 30m, up to 168h.")
    metadata = serializers.DictField(child=serializers.CharField(), required=False)
    output_expires_after = ExpiryBody(required=False)


class LineErrorShown(Shape):
    code = serializers.CharField()
    message = serializers.CharField()
    param = serializers.CharField(allow_null=True)
    line = serializers.IntegerField(allow_null=True)


class LineErrorsShown(Shape):
    object = serializers.CharField(help_text="list")
    data = LineErrorShown(many=True)  # type: ignore[assignment]  # DRF's own property of that name


class LineCountsShown(Shape):
    total = serializers.IntegerField()
    completed = serializers.IntegerField()
    failed = serializers.IntegerField()


class BatchShown(Shape):
    id = serializers.CharField()
    object = serializers.CharField(help_text="batch")
    endpoint = serializers.CharField()
    model = serializers.CharField(allow_null=True)
    errors = LineErrorsShown(allow_null=True)  # type: ignore[assignment]  # DRF's own property of that name
    input_file_id = serializers.CharField(allow_null=True)
    completion_window = serializers.CharField()
    status = serializers.ChoiceField(BatchStatus.values)
    output_file_id = serializers.CharField(allow_null=True, help_text="The answers; null while there are none.")
    error_file_id = serializers.CharField(
        allow_null=True, help_text="The lines that failed; null while there are none."
    )
    created_at = serializers.IntegerField()
    in_progress_at = serializers.IntegerField(allow_null=True)
    expires_at = serializers.IntegerField()
    finalizing_at = serializers.IntegerField(allow_null=True)
    completed_at = serializers.IntegerField(allow_null=True)
    failed_at = serializers.IntegerField(allow_null=True)
    expired_at = serializers.IntegerField(allow_null=True)
    cancelling_at = serializers.IntegerField(allow_null=True)
    cancelled_at = serializers.IntegerField(allow_null=True)
    request_counts = LineCountsShown()
    usage = AnyValue(help_text="Tokens of all answers, once the batch has ended.")
    metadata = serializers.DictField(child=serializers.CharField(), allow_null=True)


class BatchPageShown(Shape):
    object = serializers.CharField(help_text="list")
    data = BatchShown(many=True)  # type: ignore[assignment]  # DRF's own property of that name
    first_id = serializers.CharField(allow_null=True)
    last_id = serializers.CharField(allow_null=True)
    has_more = serializers.BooleanField()
