"""What chat templates render keeps the order of its keys. Writes the tables of rollouts and of members of datasets anew:
it takes as long, and for a while as much room again, as they do. What was sorted when it was stored stays sorted."""

import rollouts.models.ordered
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0052_promised_on_one_machine")]

    operations = [
        migrations.AlterField("rollout", "tools", rollouts.models.ordered.OrderedJSONField(null=True)),
        migrations.AlterField("datasetmember", "row", rollouts.models.ordered.OrderedJSONField(null=True)),
        migrations.AlterField("agentsession", "problem", rollouts.models.ordered.OrderedJSONField()),
    ]
