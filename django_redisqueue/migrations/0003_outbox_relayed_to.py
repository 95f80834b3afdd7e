from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("django_redisqueue", "0002_mirror_faults")]

    operations = [migrations.RemoveField(model_name="outboxjob", name="relayed_to")]
