from typing import Any

from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations

LOOK = ("view_filebatch", "view_storedfile")
GROUPS = {"may look": LOOK, "may act": (*LOOK, "change_filebatch"), "may administer": (*LOOK, "change_filebatch")}


def permit(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    create_permissions(installed.get_app_config("api"), verbosity=0, using=alias, apps=installed)
    permissions = apps.get_model("auth", "Permission").objects.using(alias).filter(content_type__app_label="api")
    for group in apps.get_model("auth", "Group").objects.using(alias).filter(name__in=GROUPS):
        group.permissions.add(*permissions.filter(codename__in=GROUPS[group.name]))


class Migration(migrations.Migration):

    dependencies = [("api", "0009_file_batches")]

    operations = [migrations.RunPython(permit, migrations.RunPython.noop)]
