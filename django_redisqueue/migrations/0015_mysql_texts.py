"""On MySQL and MariaDB, texts may have any character, and different names are different.

A database that was created without a character set may have latin1. And by the default collations
"Load" and "load" are the same text: a step would get the receipt of another one, and the numbers of
two tasks would need the same row. By most others, "load" and "load " are. Tables with foreign keys
stay as they are: a key that refers to a text must have its collation.
"""

from typing import Any

from django.db import migrations, router

APP = "django_redisqueue"
EXACT = {"Approval", "OutboxJob", "PeriodicJob", "Receipt", "Rollup", "StepReceipt"}
COLLATION = (
    "SELECT table_collation FROM information_schema.tables "
    "WHERE table_schema = DATABASE() AND table_name = %s"
)


def exact_collation(connection: Any) -> str:
    """One that distinguishes case, and spaces at the end."""
    if connection.mysql_is_mariadb:
        return "utf8mb4_nopad_bin"
    return "utf8mb4_0900_bin" if connection.mysql_version >= (8, 0, 17) else "utf8mb4_bin"


def convert(apps: Any, schema_editor: Any) -> None:
    connection = schema_editor.connection
    if connection.vendor != "mysql":
        return
    for model in apps.get_app_config(APP).get_models():
        meta = model._meta
        has_keys = any(field.is_relation for field in meta.fields)
        if meta.proxy or has_keys or not router.allow_migrate_model(connection.alias, model):
            continue
        with connection.cursor() as cursor:
            cursor.execute(COLLATION, [meta.db_table])
            [collation] = cursor.fetchone()
        # Of the whole table: migrations that alter a column name no collation.
        change = f"ALTER TABLE {schema_editor.quote_name(meta.db_table)} CONVERT TO CHARACTER SET"
        if meta.object_name in EXACT:
            schema_editor.execute(f"{change} utf8mb4 COLLATE {exact_collation(connection)}")
        elif not collation.startswith("utf8mb4"):
            schema_editor.execute(f"{change} utf8mb4")


class Migration(migrations.Migration):
    atomic = False  # MySQL commits with each statement
    dependencies = [
        ("django_redisqueue", "0014_correlation_id"),
    ]

    operations = [
        migrations.RunPython(convert, migrations.RunPython.noop),
    ]
