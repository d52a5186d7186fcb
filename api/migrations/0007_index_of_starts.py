from django.db import migrations, models

from inference.store.postgresql.migration_operations import AddIndexBesideWriters


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('api', '0006_right_to_high'),
    ]

    operations = [
        AddIndexBesideWriters(
            model_name='apikey',
            index=models.Index(fields=['start'], name='key_by_start'),
        ),
    ]
