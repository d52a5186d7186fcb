"""A view that asks a model, and answers within five seconds whatever becomes of the service."""

from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_GET

from batch_inference_client import Client, ClientError, JobError

client = Client(settings.INFERENCE_URL, settings.INFERENCE_API_KEY)  # one a process, for all its threads


@require_GET
def language(request: HttpRequest) -> JsonResponse:
    try:
        answer = client.run("language", request.GET.get("text", ""), timeout=4)  # a silent service takes a second more
    except TimeoutError:  # the job goes on
        return JsonResponse({"error": "This takes longer than it should. Please try again."}, status=504)
    except JobError:  # the model could not answer this text
        return JsonResponse({"error": "The language of this text cannot be told."}, status=422)
    except ClientError as error:  # the service refused it, or is away
        status = 503 if error.passing else 422
        return JsonResponse({"error": error.detail}, status=status)
    return JsonResponse({"language": answer})
