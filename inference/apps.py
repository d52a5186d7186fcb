from django.apps import AppConfig
from django.db.backends.signals import connection_created


class InferenceConfig(AppConfig):
    name = "inference"

    def ready(self) -> None:
        from inference import checks, clock  # noqa: F401 - checks registers the system checks

        connection_created.connect(clock.measure)
