from typing import Any

from django.apps import apps as installed
from django.contrib.auth.management import create_permissions
from django.db import migrations

LOOK = (
    "inference.view_job", "inference.view_bulk", "inference.view_worker", "inference.view_pausedmodel",
    "inference.view_webhook",
)  # fmt: skip
ACT = ("inference.change_job", "inference.change_worker", "inference.change_pausedmodel")
ADMINISTER = ("api.view_apikey", "api.add_apikey", "api.change_apikey", "api.delete_apikey", "auth.view_user")
GROUPS = {"may look": LOOK, "may act": LOOK + ACT, "may administer": LOOK + ACT + ADMINISTER}


def make(apps: Any, schema_editor: Any) -> None:
    """Groups that are there, and what else they may, stay."""
    alias = schema_editor.connection.alias
    for label in ("auth", "api", "inference"):
        # Else permissions are made after all migrations only.
        create_permissions(installed.get_app_config(label), verbosity=0, using=alias, apps=installed)
    groups, permissions = apps.get_model("auth", "Group").objects, apps.get_model("auth", "Permission").objects
    for name, names in GROUPS.items():
        group, _ = groups.using(alias).get_or_create(name=name)
        for app, codename in (permission.split(".") for permission in names):
            group.permissions.add(permissions.using(alias).get(content_type__app_label=app, codename=codename))


class Migration(migrations.Migration):

    dependencies = [
        ("api", "0001_initial"),
        ("inference", "0013_steering"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [migrations.RunPython(make, migrations.RunPython.noop)]
