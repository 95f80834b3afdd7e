from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("django_redisqueue", "0011_error_groups"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="jobrecord",
            options={
                "permissions": [
                    ("retry_job", "Can retry jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("pause_queue", "Can pause and resume queues"),
                    ("clear_queue", "Can clear lists and delete jobs"),
                    ("enqueue_job", "Can enqueue jobs"),
                    ("control_worker", "Can quiet, resume and stop workers"),
                ],
                "verbose_name": "job record",
            },
        ),
    ]
