from importlib import import_module
from typing import Any

from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations

GROUPS = import_module("api.migrations.0002_groups").GROUPS


def permit(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    create_permissions(installed.get_app_config("inference"), verbosity=0, using=alias, apps=installed)
    permission = apps.get_model("auth", "Permission").objects.using(alias).get(
        content_type__app_label="inference", codename="view_act"
    )
    for group in apps.get_model("auth", "Group").objects.using(alias).filter(name__in=GROUPS):
        group.permissions.add(permission)


class Migration(migrations.Migration):

    dependencies = [("api", "0002_groups"), ("inference", "0014_acts")]

    operations = [migrations.RunPython(permit, migrations.RunPython.noop)]
