from django.db import migrations, models

from inference.store.postgresql.migration_operations import AddIndexBesideWriters


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('inference', '0009_lists_in_parts'),
    ]

    operations = [
        AddIndexBesideWriters(
            model_name='job',
            index=models.Index(condition=models.Q(('whole__isnull', False)), fields=['whole', 'status', 'place'], name='job_by_whole'),
        ),
        AddIndexBesideWriters(
            model_name='job',
            index=models.Index(condition=models.Q(('parts__isnull', False)), fields=['status'], name='job_in_parts'),
        ),
    ]
