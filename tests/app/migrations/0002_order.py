from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("app", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("shop", models.IntegerField(default=1)),
                ("total", models.IntegerField(default=0)),
                ("paid", models.BooleanField(default=False)),
            ],
        ),
    ]
