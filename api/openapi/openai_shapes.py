"""Shapes of bodies and answers in OpenAI's words, for the OpenAPI document.

`api.requests` reads the bodies, and `api.answers` makes the answers.
"""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.openapi.answer_shapes import AnyValue, BinaryFile, OpenAIModelShown, PrioritizedBody, Shape
from api.requests.dialects.generation import completions

UNREAD = "Without effect: the address names the model."


@extend_schema_field({"type": ["string", "array"], "items": {"type": "string"}})
class StopField(AnyValue):
    pass


class StreamOptionsBody(Shape):
    include_usage = serializers.BooleanField(required=False, help_text="A last chunk has the counts of tokens.")
    include_obfuscation = serializers.BooleanField(required=False, help_text="Ignored.")


class CompletionBody(PrioritizedBody):
    """OpenAI's; docs/guide/openai.md has the fields that are served. Parameters of the model may stand beside them."""

    max_tokens = serializers.IntegerField(required=False, min_value=1)
    max_completion_tokens = serializers.IntegerField(required=False, min_value=1, help_text="The same.")
    min_tokens = serializers.IntegerField(required=False, min_value=0)
    ignore_eos = serializers.BooleanField(required=False, help_text="The answer has as many tokens as it may have.")
    n = serializers.IntegerField(
        required=False, min_value=1, max_value=completions.MOST_ANSWERS, help_text="Answers to each prompt."
    )
    temperature = serializers.FloatField(required=False, min_value=0)
    top_p = serializers.FloatField(required=False)
    min_p = serializers.FloatField(required=False, min_value=0, max_value=1)
    frequency_penalty = serializers.FloatField(required=False, min_value=-2, max_value=2)
    presence_penalty = serializers.FloatField(required=False, min_value=-2, max_value=2)
    repetition_penalty = serializers.FloatField(required=False, help_text="A parameter of most models.")
    logit_bias = serializers.DictField(
        child=serializers.FloatField(min_value=-100, max_value=100), required=False, help_text="By numbers of tokens."
    )
    stop = StopField(required=False, help_text="A string, or several.")
    seed = serializers.IntegerField(required=False, min_value=0)
    stream = serializers.BooleanField(required=False, help_text="Chunks as server-sent events.")
    stream_options = StreamOptionsBody(required=False)
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


@extend_schema_field({"type": ["string", "array", "null"], "items": {"type": "object", "additionalProperties": {}}})
class ContentField(AnyValue):
    pass


class MessageBody(MessageShown):
    content = ContentField(  # type: ignore[assignment]  # an answer has a string only
        required=False, help_text="A string, or parts of the type text; none beside tool_calls."
    )
    tool_call_id = serializers.CharField(required=False, help_text="Of a message of the role tool: the call's id.")


class ChatBody(CompletionBody):
    model = serializers.CharField()
    messages = MessageBody(many=True)
    logprobs = serializers.BooleanField(required=False, help_text="Those of the tokens of the answer.")
    top_logprobs = serializers.IntegerField(
        required=False, min_value=0, max_value=completions.MOST_LOGPROBS, help_text="Others beside each token."
    )
    tools = serializers.ListField(
        child=serializers.DictField(), required=False, help_text="OpenAI's: the functions that the model may call."
    )
    tool_choice = AnyValue(required=False, help_text="auto, none, required, or the function that must be called.")
    parallel_tool_calls = serializers.BooleanField(required=False, help_text="false: at most one call.")
    continue_final_message = serializers.BooleanField(
        required=False, help_text="vLLM's, with add_generation_prompt of false: go on with the last message."
    )
    add_generation_prompt = serializers.BooleanField(required=False)


class ModelChatBody(ChatBody):
    model = serializers.CharField(required=False, help_text=UNREAD)


@extend_schema_field({"type": ["string", "array"], "minItems": 1, "items": {
    "type": "object", "additionalProperties": {}
}})  # fmt: skip
class InputField(AnyValue):
    pass


class ResponseBody(PrioritizedBody):
    """OpenAI's; docs/guide/openai.md has the fields that are served. Parameters of the model may stand beside them."""

    model = serializers.CharField()
    input = InputField(help_text="A string; or messages, calls and their results.")
    instructions = serializers.CharField(required=False)
    max_output_tokens = serializers.IntegerField(required=False, min_value=1)
    temperature = serializers.FloatField(required=False, min_value=0)
    top_p = serializers.FloatField(required=False)
    text = serializers.DictField(required=False, help_text="The form of the answer.")
    tools = serializers.ListField(child=serializers.DictField(), required=False)
    tool_choice = AnyValue(required=False, help_text="auto, none, required, or the function that must be called.")
    parallel_tool_calls = serializers.BooleanField(required=False, help_text="false: at most one call.")
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
    file = BinaryFile(help_text="WAV, or another format that the service can read.")
    model = serializers.CharField()
    language = serializers.CharField(required=False, help_text="Such as en, of a model that knows several.")
    response_format = serializers.CharField(required=False, help_text="json, text, verbose_json, srt or vtt.")


class TranscriptionShown(Shape):
    text = serializers.CharField(allow_blank=True)


class SpeechBody(PrioritizedBody):
    model = serializers.CharField()
    input = serializers.CharField()
    voice = serializers.CharField(required=False, help_text="Ignored: a model has a voice of its own.")


@extend_schema_field({"type": ["string", "array"], "minItems": 1, "items": {
    "type": ["string", "integer", "array"], "items": {"type": "integer", "minimum": 0}
}})  # fmt: skip
class PromptField(AnyValue):
    pass


class TextBody(CompletionBody):
    model = serializers.CharField()
    max_tokens = serializers.IntegerField(required=False, min_value=0, help_text="0 only beside echo.")
    max_completion_tokens = serializers.IntegerField(required=False, min_value=0, help_text="The same.")
    prompt = PromptField(help_text="A text, tokens of the model as a list of numbers, or a list of either.")
    echo = serializers.BooleanField(required=False, help_text="The text begins with the prompt.")
    logprobs = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=completions.MOST_LOGPROBS,
        help_text="Of the tokens of the answer, and of so many others beside each.",
    )


class ModelTextBody(TextBody):
    model = serializers.CharField(required=False, help_text=UNREAD)


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


class OpenAIModelsShown(Shape):
    object = serializers.CharField(help_text="list")
    data = OpenAIModelShown(many=True)  # type: ignore[assignment]  # DRF's own property of that name


class OpenAIErrorShown(Shape):
    message = serializers.CharField()
    type = serializers.ChoiceField(["invalid_request_error", "rate_limit_error", "permission_error", "server_error"])
    param = serializers.CharField(allow_null=True, help_text="The field that is wrong.")
    code = serializers.CharField(help_text="Stable.")
    job_id = serializers.CharField(required=False, help_text="Of the job that has failed.")


class OpenAIProblemShown(Shape):
    error = OpenAIErrorShown()
