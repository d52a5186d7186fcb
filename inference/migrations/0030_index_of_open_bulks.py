from django.db import migrations, models

from inference.store.postgresql.migration_operations import AddIndexBesideWriters


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('inference', '0029_bulk_worked_at'),
    ]

    operations = [
        AddIndexBesideWriters(
            model_name='bulk',
            index=models.Index(condition=models.Q(('is_open', True)), fields=['id'], name='bulk_open'),
        ),
    ]
