from django.db import models


class Counter(models.Model):
    """A row for jobs to change, so that a test can count what really ran."""

    name = models.CharField(max_length=100, unique=True)
    value = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"
