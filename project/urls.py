from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from inference.admin.pages import dashboard_updates

admin.autodiscover()

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("api.urls")),  # first, so that no other pattern is tried for the API's many requests
    path("admin", RedirectView.as_view(url="/admin/")),
    path("admin/", include((dashboard_updates.urls, "charts"))),
    path("admin/", admin.site.urls),
]
handler400 = "api.errors.problems.bad_request"
handler404 = "api.errors.problems.not_found"
handler500 = "api.errors.problems.server_error"
