"""A page for who is logged in: it asks a model through the queue, and remembers the answers in the session."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from api.in_process_client import InProcessClient
from batch_inference_client import ClientError


@login_required
@require_http_methods(["GET", "POST"])
def notes(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return render(request, "notes/notes.html", {"notes": request.session.get("notes", [])})
    text = request.POST.get("text", "")
    try:
        with InProcessClient(owner=request.user) as client:
            language = client.run("language", text, timeout=10)
    except (ClientError, TimeoutError) as error:
        return render(request, "notes/notes.html", {"problem": str(error)}, status=503)
    request.session["notes"] = [*request.session.get("notes", []), {"text": text, "language": language}][-10:]
    return redirect("notes")
