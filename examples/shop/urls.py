from django.urls import path

from examples.shop import views

urlpatterns = [path("language", views.language)]
