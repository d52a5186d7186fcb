from django.db import migrations, models

from inference.store.postgresql.migration_operations import AddIndexBesideWriters, RemoveIndexBesideWriters


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('inference', '0022_moments'),
    ]

    operations = [
        AddIndexBesideWriters(
            model_name='job',
            index=models.Index(condition=models.Q(('status', 'queued')), fields=['owner', 'priority', 'model', 'id'], name='job_queued_by_owners'),
        ),
        RemoveIndexBesideWriters(model_name='job', name='job_queued_by_owner'),
    ]
