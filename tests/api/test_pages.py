"""Pages of an app that a team adds: what Django has for them is there, and the API pays for none of it."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import get_user_model
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.test import Client, TestCase, override_settings
from django.urls import path

from project import urls

SEEN: list[str] = []


class Seeing:
    """Middleware of a team: it sees addresses, and answers one that no view has."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        SEEN.append(request.path)
        return HttpResponse("all") if request.path == "/robots.txt" else self.get_response(request)


def visits(request: HttpRequest) -> HttpResponse:
    request.session["visits"] = request.session.get("visits", 0) + 1
    return HttpResponse(str(request.session["visits"]))


@login_required
def own(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.user.get_username())


def form(request: HttpRequest) -> HttpResponse:
    messages.info(request, "sent")
    return HttpResponse(request.POST.get("text", ""))


def missing(request: HttpRequest) -> HttpResponse:
    raise Http404


PAGES = [path("notes/", visits), path("notes/own", own), path("notes/form", form), path("missing", missing)]


class Urls:
    urlpatterns = [*urls.urlpatterns, *PAGES]
    handler404 = urls.handler404


class FirstUrls:
    urlpatterns = [path("", visits), *urls.urlpatterns]


@override_settings(
    ROOT_URLCONF=Urls,
    MIDDLEWARE=[*settings.MIDDLEWARE, "tests.api.test_pages.Seeing"],
)
class PagesTests(TestCase):
    def setUp(self) -> None:
        SEEN.clear()

    def test_a_page_has_a_session(self) -> None:
        self.assertEqual([self.client.get("/notes/").content for _ in range(2)], [b"1", b"2"])
        self.assertIn("X-Request-Id", self.client.get("/notes/").headers)

    def test_a_page_may_require_a_login(self) -> None:
        answer = self.client.get("/notes/own")
        self.assertEqual((answer.status_code, answer.headers["Location"]), (302, "/accounts/login/?next=/notes/own"))
        self.client.force_login(get_user_model().objects.create_user("anna"))
        self.assertEqual(self.client.get("/notes/own").content, b"anna")

    def test_a_form_needs_its_token(self) -> None:
        self.assertEqual(self.client.post("/notes/form", {"text": "a"}).content, b"a")
        self.assertEqual(Client(enforce_csrf_checks=True).post("/notes/form", {"text": "a"}).status_code, 403)

    def test_a_page_may_have_the_first_address(self) -> None:
        with override_settings(ROOT_URLCONF=FirstUrls):
            self.assertEqual(self.client.get("/").content, b"1")
            self.assertEqual(self.client.get("/healthz").status_code, 200)

    def test_middleware_sees_pages_and_what_no_view_answers(self) -> None:
        self.client.get("/notes/")
        self.assertEqual(self.client.get("/robots.txt").content, b"all")
        self.assertEqual(SEEN, ["/notes/", "/robots.txt"])

    def test_what_is_not_there_is_a_problem_at_every_address(self) -> None:
        client = Client(enforce_csrf_checks=True)
        gone = ("/nothing", "/nothing/", "/v1/nothing", "/notes")
        answers = [client.get(path_) for path_ in ("/missing", *gone)]
        answers += [client.post(path_, b"{}", content_type="application/json") for path_ in gone]
        for answer in answers:
            self.assertEqual((answer.status_code, answer.json()["code"]), (404, "not_found"), answer)
        self.assertEqual(client.get("/openai/v1/nothing").json()["error"]["code"], "not_found")

    @override_settings(API_KEY_REQUIRED=False)
    def test_the_api_meets_no_middleware_of_pages(self) -> None:
        for path_ in ("/", "/healthz", "/v1/models", "/v1/models/", "/v1/jobs/unknown", "/v1/nothing", "/openai/v1"):
            self.assertNotIn("X-Frame-Options", self.client.get(path_).headers)
        self.client.post("/v1/jobs", b"{", content_type="application/json")
        self.assertEqual(SEEN, [])
