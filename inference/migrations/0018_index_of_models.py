from django.db import migrations, models

from inference.fields.indexes import PostgresqlPartialIndex
from inference.store.postgresql.migration_operations import AddIndexBesideWriters, RemoveIndexBesideWriters


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('inference', '0017_job_traceparent'),
    ]

    operations = [
        AddIndexBesideWriters(
            model_name='job',
            index=PostgresqlPartialIndex(condition=models.Q(('whole__isnull', True)), fields=['model', '-id'], name='job_of_model'),
        ),
        RemoveIndexBesideWriters(model_name='job', name='job_by_model'),
    ]
