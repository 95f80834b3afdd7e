"""The data that the report covers, and the record of each report. Amounts are in euro cents."""

from __future__ import annotations

from uuid import uuid4

from django.db import models


class User(models.Model):
    """A customer of the bank, not a user of this site."""

    name = models.CharField(max_length=100)
    email = models.EmailField(unique=True)
    phone = models.CharField(max_length=30)
    address = models.CharField(max_length=100)
    country = models.CharField(max_length=2)
    joined = models.DateField()
    active = models.BooleanField(default=True)

    def __str__(self) -> str:
        return self.name


class Account(models.Model):
    user = models.ForeignKey(User, models.CASCADE, related_name="accounts")
    iban = models.CharField(max_length=34, unique=True)

    def __str__(self) -> str:
        return self.iban


class Booking(models.Model):
    """Money that was paid into an account, or out of it (then ``cents`` is negative)."""

    account = models.ForeignKey(Account, models.CASCADE, related_name="bookings")
    day = models.DateField()
    cents = models.BigIntegerField()
    text = models.CharField(max_length=40)

    def __str__(self) -> str:
        return f"{self.day} {self.text}: {self.cents}"


class Fund(models.Model):
    isin = models.CharField(max_length=12, unique=True)
    name = models.CharField(max_length=60)

    def __str__(self) -> str:
        return self.name


class Price(models.Model):
    """The price of a fund's unit at the end of a trading day. All funds have the same days."""

    fund = models.ForeignKey(Fund, models.CASCADE, related_name="prices")
    day = models.DateField()
    cents = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["fund", "day"], name="reports_one_price")]

    def __str__(self) -> str:
        return f"{self.day}: {self.cents}"


class Trade(models.Model):
    """Units of a fund that were bought, or sold (then ``units`` and ``cents`` are negative)."""

    user = models.ForeignKey(User, models.CASCADE, related_name="trades")
    fund = models.ForeignKey(Fund, models.CASCADE, related_name="trades")
    day = models.DateField()
    units = models.BigIntegerField()
    cents = models.BigIntegerField(help_text="what was paid for them")

    def __str__(self) -> str:
        return f"{self.day} {self.units} units"


class FileDownloadRecord(models.Model):
    """A requested report and its file."""

    class Status(models.TextChoices):
        REQUESTED = "requested"
        READY = "ready"
        FAILED = "failed"

    # Random, because it names the gather in Redis, which may outlive the rows of this database.
    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.REQUESTED)
    file = models.FileField(max_length=200, blank=True)
    rows = models.PositiveIntegerField(null=True, blank=True)
    missing = models.JSONField(default=list, blank=True, help_text="sources that did not answer")
    problem = models.TextField(blank=True)
    requested_at = models.DateTimeField(auto_now_add=True, db_index=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-requested_at", "id"]

    def __str__(self) -> str:
        return f"{self.id}: {self.status}"

    @property
    def key(self) -> str:
        """The key of the report's gather."""
        return f"FileDownloadRecord-{self.id}"

    @property
    def seconds(self) -> float:
        """The time from the request to the end; 0 until then."""
        return (self.ended_at - self.requested_at).total_seconds() if self.ended_at else 0.0

    @property
    def folder(self) -> str:
        """The storage's folder for its file, and for the files of runs that did not complete."""
        return f"reports/{self.id}"
