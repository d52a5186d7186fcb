from django.urls import path

from examples.notes import views
from project.urls import handler400, handler404, handler500, urlpatterns

urlpatterns = [*urlpatterns, path("notes/", views.notes, name="notes")]  # the API's addresses stay the first

__all__ = ["handler400", "handler404", "handler500", "urlpatterns"]
