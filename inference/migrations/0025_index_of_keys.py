from django.db import migrations, models

from inference.store.postgresql.migration_operations import AddIndexBesideWriters


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('inference', '0024_job_key_start'),
    ]

    operations = [
        AddIndexBesideWriters(
            model_name='job',
            index=models.Index(condition=models.Q(('key_start__isnull', False)), fields=['key_start', '-id'], name='job_by_key'),
        ),
    ]
