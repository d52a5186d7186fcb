import inference.clock
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('api', '0004_key_use'),
    ]

    operations = [  # what new rows begin with: the tables stay as they are
        migrations.SeparateDatabaseAndState(state_operations=[
            migrations.AlterField(
                model_name='apikey',
                name='created_at',
                field=models.DateTimeField(default=inference.clock.estimate_now, editable=False),
            ),
        ]),
    ]
