from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0020_job_reader'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='prompt_length',
            field=models.IntegerField(default=None, help_text='Characters of the prompt before the generated text in the output.', null=True),
        ),
    ]
