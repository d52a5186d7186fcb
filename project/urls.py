from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, include, path, reverse
from django.views import defaults
from django.views.generic import RedirectView

from api.errors import problems
from inference.admin.pages import dashboard_updates

admin.autodiscover()

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("api.urls")),  # first, so that no other pattern is tried for the API's many requests
    path("admin", RedirectView.as_view(url="/admin/")),
    path("admin/", include((dashboard_updates.urls, "charts"))),
    path("admin/", admin.site.urls),
]
handler400 = "api.errors.problems.answer_bad_request"
handler404 = "project.urls.answer_not_found"
handler500 = "api.errors.problems.answer_server_error"


def answer_not_found(request: HttpRequest, exception: Http404) -> HttpResponse:
    """Answer with a page in the admin, and with a problem elsewhere."""
    if request.path_info.startswith(reverse("admin:index")):
        return defaults.page_not_found(request, exception)
    return problems.answer_not_found(request, exception)
