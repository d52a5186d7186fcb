from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "api"
    verbose_name = "Clients"  # the heading of their keys, files and file batches in the admin
