from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('api', '0005_moments'),
    ]

    operations = [
        migrations.AddField(
            model_name='apikey',
            name='may_use_high',
            field=models.BooleanField(db_default=True, default=True, help_text='Its jobs may have the priority high.'),
        ),
    ]
