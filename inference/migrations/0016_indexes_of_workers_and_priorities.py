from django.db import migrations, models

from inference.store.postgresql.migration_operations import AddIndexBesideWriters


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('inference', '0015_index_of_errors'),
    ]

    operations = [
        AddIndexBesideWriters(
            model_name='job',
            index=models.Index(condition=models.Q(('worker__isnull', False)), fields=['worker', '-id'], name='job_by_worker'),
        ),
        AddIndexBesideWriters(
            model_name='job',
            index=models.Index(condition=models.Q(('priority', 2), _negated=True), fields=['priority', '-id'], name='job_by_priority'),
        ),
    ]
