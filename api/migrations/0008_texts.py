
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('api', '0007_index_of_starts'),
    ]

    operations = [
        migrations.AlterField(
            model_name='apikey',
            name='expires_at',
            field=models.DateTimeField(blank=True, default=None, help_text='If empty, the key does not expire.', null=True),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='max_queued',
            field=models.PositiveIntegerField(blank=True, help_text='Jobs of the owner that may wait at once. If empty, API_KEY_MAX_QUEUED applies.', null=True),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='may_use_high',
            field=models.BooleanField(db_default=True, default=True, help_text='Requests with this key may ask for it.', verbose_name='may use high priority'),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='name',
            field=models.CharField(blank=True, help_text='The purpose of the key.', max_length=100),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='requests_per_minute',
            field=models.PositiveIntegerField(blank=True, help_text='The limit of this key. If empty, API_KEY_RATE applies.', null=True),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='start',
            field=models.CharField(editable=False, help_text='The first characters of the key.', max_length=12),
        ),
    ]
