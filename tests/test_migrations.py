"""Models and migrations agree, in the package and in the example."""

from io import StringIO

import pytest
from django.core.management import call_command


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("app", ["django_redisqueue", "reports"])
def test_nothing_is_left_to_migrate(app: str) -> None:
    said = StringIO()
    try:
        call_command("makemigrations", app, check=True, dry_run=True, stdout=said)
    except SystemExit:
        pytest.fail(said.getvalue())
