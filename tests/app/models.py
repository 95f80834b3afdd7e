from django.db import models


class Counter(models.Model):
    """A row for jobs to change, so that a test can count what really ran."""

    name = models.CharField(max_length=100, unique=True)
    value = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


class Order(models.Model):
    """The data of a shop, for the examples in the documentation."""

    shop = models.IntegerField(default=1)
    total = models.IntegerField(default=0)
    paid = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"order {self.pk}"
