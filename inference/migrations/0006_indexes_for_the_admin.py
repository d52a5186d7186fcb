from django.db import migrations, models

from inference.store.postgresql.migration_operations import AddIndexBesideWriters


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('inference', '0005_worker_connected'),
    ]

    operations = [
        AddIndexBesideWriters(
            model_name='job',
            index=models.Index(fields=['request_id'], name='job_by_request'),
        ),
        AddIndexBesideWriters(
            model_name='job',
            index=models.Index(condition=models.Q(('batch__isnull', False)), fields=['batch'], name='job_by_batch'),
        ),
    ]
