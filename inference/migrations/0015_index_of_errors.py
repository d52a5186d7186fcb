from django.db import migrations, models

from inference.store.postgresql.migration_operations import AddIndexBesideWriters


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('inference', '0014_acts'),
    ]

    operations = [
        AddIndexBesideWriters(
            model_name='job',
            index=models.Index(condition=models.Q(('error_code__gt', '')), fields=['error_code', '-id'], name='job_by_error'),
        ),
    ]
