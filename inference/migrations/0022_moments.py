import inference.clock
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0021_job_prompt_length'),
    ]

    operations = [  # what new rows begin with: the tables stay as they are
        migrations.SeparateDatabaseAndState(state_operations=[
            migrations.AlterField(
                model_name='act',
                name='created_at',
                field=models.DateTimeField(default=inference.clock.estimate_now),
            ),
            migrations.AlterField(
                model_name='bulk',
                name='created_at',
                field=models.DateTimeField(default=inference.clock.estimate_now),
            ),
            migrations.AlterField(
                model_name='job',
                name='created_at',
                field=models.DateTimeField(default=inference.clock.estimate_now),
            ),
            migrations.AlterField(
                model_name='mark',
                name='at',
                field=models.DateTimeField(default=inference.clock.estimate_now),
            ),
            migrations.AlterField(
                model_name='mark',
                name='kind',
                field=models.CharField(help_text='deployed, started, stopped, gone or retention', max_length=10),
            ),
            migrations.AlterField(
                model_name='pausedmodel',
                name='paused_at',
                field=models.DateTimeField(default=inference.clock.estimate_now),
            ),
            migrations.AlterField(
                model_name='webhook',
                name='due_at',
                field=models.DateTimeField(default=inference.clock.estimate_now, help_text='Not before, nor before the job is finished.'),
            ),
            migrations.AlterField(
                model_name='worker',
                name='heartbeat_at',
                field=models.DateTimeField(default=inference.clock.estimate_now),
            ),
            migrations.AlterField(
                model_name='worker',
                name='started_at',
                field=models.DateTimeField(default=inference.clock.estimate_now),
            ),
        ]),
    ]
