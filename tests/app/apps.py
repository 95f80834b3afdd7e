from django.apps import AppConfig


class TestsAppConfig(AppConfig):
    name = "tests.app"
    default_auto_field = "django.db.models.BigAutoField"
