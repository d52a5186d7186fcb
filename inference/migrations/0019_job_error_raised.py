from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0018_index_of_models'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='error_raised',
            field=models.TextField(default=None, help_text="What a model's own code or a library raised, for operators.", null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='error_trace',
            field=models.TextField(default=None, help_text='Where that was raised, for operators.', null=True),
        ),
    ]
