"""Shapes of bodies and answers in OpenAI's words, for the OpenAPI document.

`api.requests` reads the bodies, and `api.answers` makes the answers.
"""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.openapi.answer_shapes import AnyValue, PrioritizedBody, Shape


class CompletionBody(PrioritizedBody):
    """OpenAI's; docs/guide/openai.md has the fields that are served. Parameters of the model may stand beside them."""

    model = serializers.CharField(required=False, help_text="Without effect: the address names the model.")
    max_tokens = serializers.IntegerField(required=False, min_value=1)
    temperature = serializers.FloatField(required=False, min_value=0)
    top_p = serializers.FloatField(required=False)
    stop = serializers.ListField(child=serializers.CharField(), required=False, help_text="Or one string.")
    seed = serializers.IntegerField(required=False, min_value=0)
    stream = serializers.BooleanField(required=False, help_text="Chunks as server-sent events.")
    response_format = serializers.DictField(
        required=False, help_text="Of type text, json_object or json_schema: the answer follows the schema."
    )
    structured_outputs = serializers.DictField(
        required=False, help_text="vLLM's: one of json, regex, choice and json_object, which the answer follows."
    )


class FunctionShown(Shape):
    name = serializers.CharField()
    arguments = serializers.CharField(help_text="The JSON text of an object.")


class ToolCallShown(Shape):
    id = serializers.CharField()
    type = serializers.CharField(help_text="function.")
    function = FunctionShown()


class MessageShown(Shape):
    role = serializers.CharField()
    content = serializers.CharField(allow_blank=True, allow_null=True)
    tool_calls = ToolCallShown(many=True, required=False)


class MessageBody(MessageShown):
    tool_call_id = serializers.CharField(required=False, help_text="Of a message of the role tool: the call's id.")


class ChatBody(CompletionBody):
    messages = MessageBody(many=True)
    tools = serializers.ListField(
        child=serializers.DictField(), required=False, help_text="OpenAI's: the functions that the model may call."
    )
    tool_choice = AnyValue(required=False, help_text="auto, none, required, or the function that must be called.")


class ResponseBody(Shape):
    """OpenAI's; docs/guide/openai.md has the fields that are served. Parameters of the model may stand beside them."""

    model = serializers.CharField()
    input = serializers.ListField(
        child=serializers.DictField(), help_text="Messages, calls and their results; or one string."
    )
    instructions = serializers.CharField(required=False)
    max_output_tokens = serializers.IntegerField(required=False, min_value=1)
    temperature = serializers.FloatField(required=False, min_value=0)
    top_p = serializers.FloatField(required=False)
    text = serializers.DictField(required=False, help_text="The form of the answer.")
    tools = serializers.ListField(child=serializers.DictField(), required=False)
    tool_choice = AnyValue(required=False, help_text="auto, none, required, or the function that must be called.")
    stream = serializers.BooleanField(required=False, help_text="Server-sent events.")
    background = serializers.BooleanField(required=False, help_text="Answer at once, before the response is there.")
    previous_response_id = serializers.CharField(required=False, help_text="The response that this one follows.")
    metadata = serializers.DictField(
        child=serializers.CharField(allow_blank=True),
        required=False,
        help_text="At most 16 texts, which the response repeats.",
    )
    user = serializers.CharField(required=False, allow_blank=True, help_text="Repeated.")


class ResponseShown(Shape):
    id = serializers.CharField(help_text="resp_ and the job's id.")
    object = serializers.CharField()
    created_at = serializers.IntegerField()
    model = serializers.CharField()
    status = serializers.CharField(help_text="queued, in_progress, completed, incomplete, failed or cancelled.")
    output = serializers.ListField(child=serializers.DictField(), help_text="Messages, and calls of functions.")
    usage = serializers.DictField(allow_null=True)
    error = serializers.DictField(allow_null=True)
    incomplete_details = serializers.DictField(allow_null=True)
    metadata = serializers.DictField(child=serializers.CharField(allow_blank=True))
    instructions = serializers.CharField(allow_blank=True, allow_null=True)
    tool_choice = AnyValue(help_text="As it was sent, as are temperature, top_p, text, user and parallel_tool_calls.")
    previous_response_id = serializers.CharField(allow_null=True)
    service_tier = serializers.CharField(allow_null=True)


class TranscriptionBody(Shape):
    file = serializers.FileField(help_text="WAV, or another format that the service can read.")
    model = serializers.CharField()
    language = serializers.CharField(required=False, help_text="Such as en, of a model that knows several.")
    response_format = serializers.CharField(required=False, help_text="json, text, verbose_json, srt or vtt.")


class TranscriptionShown(Shape):
    text = serializers.CharField(allow_blank=True)


class SpeechBody(Shape):
    model = serializers.CharField()
    input = serializers.CharField()


@extend_schema_field({"type": ["string", "array"], "minItems": 1, "items": {
    "type": ["string", "integer", "array"], "items": {"type": "integer", "minimum": 0}
}})  # fmt: skip
class PromptField(AnyValue):
    pass


class TextBody(CompletionBody):
    prompt = PromptField(help_text="A text, tokens of the model as a list of numbers, or a list of either.")
    echo = serializers.BooleanField(required=False, help_text="The text begins with the prompt.")


class ChoiceShown(Shape):
    index = serializers.IntegerField()
    finish_reason = serializers.CharField(help_text="stop, length or tool_calls.")
    logprobs = AnyValue(allow_null=True)


class ChatChoiceShown(ChoiceShown):
    message = MessageShown()


class TextChoiceShown(ChoiceShown):
    text = serializers.CharField(allow_blank=True)


class UsageShown(Shape):
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    total_tokens = serializers.IntegerField()


class CompletionShown(Shape):
    id = serializers.CharField(help_text="Ends with the job's id.")
    object = serializers.CharField()
    created = serializers.IntegerField()
    model = serializers.CharField()
    system_fingerprint = serializers.CharField()
    service_tier = serializers.CharField(allow_null=True)
    usage = UsageShown(allow_null=True)


class ChatShown(CompletionShown):
    choices = ChatChoiceShown(many=True)


class TextShown(CompletionShown):
    choices = TextChoiceShown(many=True)


class OpenAIErrorShown(Shape):
    message = serializers.CharField()
    type = serializers.ChoiceField(["invalid_request_error", "rate_limit_error", "permission_error", "server_error"])
    param = serializers.CharField(allow_null=True, help_text="The field that is wrong.")
    code = serializers.CharField(help_text="Stable.")
    job_id = serializers.CharField(required=False, help_text="Of the job that has failed.")


class OpenAIProblemShown(Shape):
    error = OpenAIErrorShown()
