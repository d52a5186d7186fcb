
import inference.clock
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0026_job_route'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='act',
            options={'ordering': ['-id'], 'verbose_name': 'action'},
        ),
        migrations.AlterField(
            model_name='act',
            name='counted',
            field=models.PositiveIntegerField(help_text='Jobs that were found and confirmed. The action handles no more.', verbose_name='found'),
        ),
        migrations.AlterField(
            model_name='act',
            name='cursor',
            field=models.UUIDField(default=None, help_text='The last job that was handled.', null=True),
        ),
        migrations.AlterField(
            model_name='act',
            name='kind',
            field=models.CharField(choices=[('cancel', 'Cancel'), ('retry', 'Retry'), ('retry alone', 'Retry alone')], max_length=12),
        ),
        migrations.AlterField(
            model_name='act',
            name='lease_until',
            field=models.DateTimeField(default=None, help_text='The end of the lease of the worker that handles the action.', null=True),
        ),
        migrations.AlterField(
            model_name='act',
            name='left',
            field=models.JSONField(default=dict, help_text='By reason: how many jobs were not changed.'),
        ),
        migrations.AlterField(
            model_name='act',
            name='newest',
            field=models.UUIDField(help_text='The action leaves out jobs with a later id.'),
        ),
        migrations.AlterField(
            model_name='act',
            name='selection',
            field=models.JSONField(default=dict, help_text='The lookups that select the jobs, as `inference.upkeep.acts` takes them.'),
        ),
        migrations.AlterField(
            model_name='bulk',
            name='total',
            field=models.PositiveIntegerField(help_text='Inputs that were posted, those that were refused included.'),
        ),
        migrations.AlterField(
            model_name='figure',
            name='tally',
            field=models.JSONField(default=dict, help_text='The counts, in the form of `inference.figures.tallies`.'),
        ),
        migrations.AlterField(
            model_name='job',
            name='attempts',
            field=models.PositiveIntegerField(default=0, help_text='How often a replica claimed the job.'),
        ),
        migrations.AlterField(
            model_name='job',
            name='batch',
            field=models.UUIDField(default=None, help_text='The batch that claimed the job. No other batch may record its outcome.', null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='batch_size',
            field=models.PositiveIntegerField(default=None, help_text='Items in the whole batch.', null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='bulk_index',
            field=models.PositiveIntegerField(default=None, help_text='The index of the input in the bulk.', null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='error_raised',
            field=models.TextField(default=None, help_text="The error that a model's code or a library raised, for operators.", null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='error_trace',
            field=models.TextField(default=None, help_text='The traceback of that error, for operators.', null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='idempotency_digest',
            field=models.CharField(blank=True, default='', help_text='A hash of the request.', max_length=64),
        ),
        migrations.AlterField(
            model_name='job',
            name='idempotency_key',
            field=models.CharField(default=None, help_text='OWNER:KEY. Each has one job.', max_length=300, null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='key_start',
            field=models.CharField(default=None, editable=False, help_text='The first characters of the API key of the request. They stay when the key is deleted.', max_length=12, null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='lease_until',
            field=models.DateTimeField(default=None, help_text='The end of the lease: a running job may be claimed again after it.', null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='output_size',
            field=models.IntegerField(default=None, help_text='The count of numbers in its output, if it is a part.', null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='parts',
            field=models.IntegerField(default=None, help_text='The number of its parts, if it is a whole.', null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='place',
            field=models.IntegerField(default=None, help_text='The index of its first input in the list, if it is a part.', null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='reader',
            field=models.UUIDField(default=None, editable=False, help_text='The last stream whose client wants the job cancelled when it disconnects.', null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='recoveries',
            field=models.PositiveIntegerField(default=0, help_text='How often the process that ran the job was lost.'),
        ),
        migrations.AlterField(
            model_name='job',
            name='route',
            field=models.CharField(default=None, editable=False, help_text='The path of the API that received the request.', max_length=60, null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='traceparent',
            field=models.CharField(default=None, editable=False, help_text='The traceparent of the request, if traces are on.', max_length=55, null=True),
        ),
        migrations.AlterField(
            model_name='job',
            name='whole',
            field=models.UUIDField(default=None, help_text='The whole that it belongs to, if it is a part.', null=True),
        ),
        migrations.AlterField(
            model_name='webhook',
            name='due_at',
            field=models.DateTimeField(default=inference.clock.estimate_now, help_text='The earliest time of the next try, which also waits for the end of the job.'),
        ),
        migrations.AlterField(
            model_name='webhook',
            name='state',
            field=models.CharField(choices=[('pending', 'Pending'), ('delivered', 'Delivered'), ('given up', 'Given up')], default='pending', max_length=10),
        ),
        migrations.AlterField(
            model_name='worker',
            name='catalog',
            field=models.JSONField(default=dict, help_text='The catalog that the worker has read: its digest, its problem if it is refused, and each model.', null=True),
        ),
        migrations.AlterField(
            model_name='worker',
            name='connected',
            field=models.BooleanField(db_default=True, default=True, help_text='True while the worker is connected to the broker.'),
        ),
        migrations.AlterField(
            model_name='worker',
            name='costs',
            field=models.JSONField(default=dict, help_text='By model: the expected time of an engine call, and the last measured calls of each batch shape.', null=True),
        ),
        migrations.AlterField(
            model_name='worker',
            name='generation',
            field=models.JSONField(default=dict, help_text='By model with a stepper: rows, room, tokens, tokens a second, seconds to the first token.', null=True),
        ),
        migrations.AlterField(
            model_name='worker',
            name='held',
            field=models.PositiveIntegerField(default=0, help_text='Jobs that the worker holds and has not begun.', verbose_name='backlog'),
        ),
        migrations.AlterField(
            model_name='worker',
            name='is_to_rest',
            field=models.BooleanField(db_default=False, default=False, help_text='True if an operator has drained the worker.'),
        ),
        migrations.AlterField(
            model_name='worker',
            name='jobs_per_s',
            field=models.FloatField(default=0.0, help_text='Jobs that ended per second, over the last ten seconds.'),
        ),
        migrations.AlterField(
            model_name='worker',
            name='reached',
            field=models.JSONField(default=dict, help_text='By model and priority: when the newest of the started jobs was created.'),
        ),
        migrations.AlterField(
            model_name='worker',
            name='speeds',
            field=models.JSONField(default=dict, help_text='By model: measured items per second while it computes.'),
        ),
    ]
