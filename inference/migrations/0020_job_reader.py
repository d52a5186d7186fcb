from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0019_job_error_raised'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='reader',
            field=models.UUIDField(default=None, editable=False, help_text='The last of the streams whose clients want the job cancelled when they go.', null=True),
        ),
    ]
