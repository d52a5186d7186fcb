from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.signals import connection_created


class InferenceConfig(AppConfig):
    name = "inference"

    def __init__(self, *arguments: Any) -> None:
        """Refuse the settings of another project.

        This happens before the models are imported, which need packages that the other project does not have.
        """
        super().__init__(*arguments)
        if not hasattr(settings, "MODELS_FILE"):
            raise ImproperlyConfigured(
                '"inference" is in INSTALLED_APPS, but these are not the settings of the inference service, which is a'
                " project of its own and no app of another one. Take it out of INSTALLED_APPS, start the service in its"
                " own folder by `make run`, and call it by its client: pip install FOLDER/batch_inference_client. Its"
                ' README says how, under "From your Django project".'
            )

    def ready(self) -> None:
        from inference import checks, clock  # noqa: F401 - checks registers the system checks

        connection_created.connect(clock.measure_offset)
