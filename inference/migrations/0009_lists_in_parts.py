from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0008_worker_catalog'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='parts',
            field=models.IntegerField(default=None, help_text='Of a whole: in how many parts it runs.', null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='whole',
            field=models.UUIDField(default=None, help_text='Of a part: the job that it belongs to.', null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='place',
            field=models.IntegerField(default=None, help_text='Of a part: where in the list it begins.', null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='output_size',
            field=models.IntegerField(default=None, help_text='Of a part: numbers in its output.', null=True),
        ),
    ]
