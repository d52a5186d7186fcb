from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0004_job_lease")]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="connected",
            field=models.BooleanField(db_default=True, default=True, help_text="To the broker."),
        ),
        migrations.AlterField(
            model_name="worker",
            name="model_names",
            field=models.JSONField(default=list, help_text="The models it serves."),
        ),
    ]
