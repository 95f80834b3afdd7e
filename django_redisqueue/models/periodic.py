"""Schedules as rows: those created in the admin, and one for each that the code defines."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models, router, transaction

from ..client import schedules
from ..core.clock import period_text, to_ms
from ..core.ids import check_schedule_name
from ..core.schedules import SCHEDULE_OPTIONS, Schedule, ScheduleDefinition, Source, make_schedule
from ..core.statuses import Misfire, Overlap
from ..exceptions import InvalidArguments, InvalidName, InvalidOption, RedisQueueError, UnknownQueue
from .tables import has_table

logger = logging.getLogger("django_redisqueue")

# The field that an error belongs to, by the word with which its message begins
_FIELDS = ("cron", "every", "timezone", "jitter", "priority", "args", "kwargs")
DURATIONS = ("every", "jitter")


class PeriodicJob(models.Model):
    """A schedule: when a task runs. A row of the admin takes effect when it is committed; a row of
    the code only shows what the code defines, and whether that is paused."""

    name = models.CharField(max_length=200, unique=True)
    source = models.CharField(
        max_length=8,
        choices=[(one.value, one.value) for one in Source],
        default=Source.ADMIN.value,
        editable=False,
    )
    task = models.CharField(max_length=255, help_text="The name of a registered task.")
    args = models.JSONField(default=list, blank=True, verbose_name="arguments")
    kwargs = models.JSONField(default=dict, blank=True, verbose_name="named arguments")
    cron = models.CharField(
        max_length=100,
        blank=True,
        help_text="Minute, hour, day of month, month, day of week; such as */5 * * * *.",
    )
    every = models.CharField(
        max_length=50, blank=True, help_text="Or an interval, such as 90s, 5m or 1h30m."
    )
    timezone = models.CharField(
        max_length=64, blank=True, help_text="Of the cron expression; empty for TIME_ZONE."
    )
    misfire = models.CharField(
        max_length=8,
        choices=[(one.value, one.value) for one in Misfire],
        default=Misfire.ONCE.value,
        help_text="What happens to due times that passed while no worker was there.",
    )
    overlap = models.CharField(
        max_length=8,
        choices=[(one.value, one.value) for one in Overlap],
        default=Overlap.QUEUE.value,
        help_text="What happens when the previous run has not finished.",
    )
    jitter = models.CharField(
        max_length=50, blank=True, help_text="Runs start up to so much later, such as 5m."
    )
    queue_name = models.CharField(
        max_length=64, blank=True, help_text="Empty for the queue of the task."
    )
    priority = models.SmallIntegerField(
        null=True, blank=True, help_text="Empty for the priority of the task."
    )
    is_enabled = models.BooleanField("enabled", default=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = "periodic job"

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save it. Redis gets it after the commit or, if Redis is unavailable then, soon after it
        answers again. Durations may also be seconds or timedeltas. Raises InvalidOption."""
        for name in DURATIONS:
            self._write_duration(name)
        super().save(*args, **kwargs)
        transaction.on_commit(partial(_try, self.name, self.put), using=self._state.db)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Delete it; its jobs stay."""
        alias, drop = self._state.db, partial(schedules.drop, self.name)
        found = super().delete(*args, **kwargs)
        transaction.on_commit(partial(_try, self.name, drop), using=alias)
        return found

    @property
    def is_of_code(self) -> bool:
        """Whether the code defines it, so that it cannot be changed here."""
        return self.source == Source.CODE

    def schedule(self) -> Schedule:
        """When it is due. Raises InvalidOption."""
        given = {name: getattr(self, name, None) for name in SCHEDULE_OPTIONS}
        return make_schedule({name: value for name, value in given.items() if value})

    def definition(self) -> ScheduleDefinition:
        """Its definition in Redis. Raises InvalidOption; a wrong task or arguments become its
        ``error``."""
        self._check_arguments()
        return schedules.define(
            self.name, Source.ADMIN, self.task, self.schedule(), self.args, self.kwargs,
            queue_name=self.queue_name or None, priority=self.priority,
        )  # fmt: skip

    @property
    def problem(self) -> str:
        """Why it has no definition, or ''. The code's schedules are not defined by their rows."""
        try:
            if not self.is_of_code:
                self.definition()
        except InvalidOption as error:
            return str(error)
        return ""

    def clean_fields(self, *args: Any, **kwargs: Any) -> None:
        """As in ``save``, durations may also be seconds or timedeltas."""
        for name in DURATIONS:
            self._checked(name, partial(self._write_duration, name))
        super().clean_fields(*args, **kwargs)

    def clean(self) -> None:
        """Raise ValidationError, naming the field, for a schedule that cannot run."""
        if self.is_of_code:
            return
        self._checked("name", partial(check_schedule_name, self.name))
        self._checked("cron", self.schedule)
        self._checked("args", self._check_arguments)
        check = partial(schedules.check_job, Source.ADMIN, self.task, self.args, self.kwargs)
        options = {"queue_name": self.queue_name or None, "priority": self.priority}
        self._checked("task", partial(check, **options))

    def _check_arguments(self) -> None:
        if not isinstance(self.args, list):
            raise InvalidOption('args must be a list, such as ["EU"]')
        if self.kwargs and not isinstance(self.kwargs, dict):
            raise InvalidOption('kwargs must be an object, such as {"region": "EU"}')

    def _write_duration(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, str):
            setattr(self, name, period_text(to_ms(value, name)))

    def _checked(self, field: str, check: Any) -> None:
        try:
            check()
        except (UnknownQueue, InvalidName) as error:
            where = field if field == "name" else "queue_name"
            raise ValidationError({where: str(error)}) from None
        except InvalidArguments as error:
            raise ValidationError({"args": str(error)}) from None
        except InvalidOption as error:
            word = str(error).partition(" ")[0]
            raise ValidationError({word if word in _FIELDS else field: str(error)}) from None
        except RedisQueueError as error:
            raise ValidationError({field: str(error)}) from None

    def put(self) -> None:
        """Write this row to Redis. Raises InvalidOption, or whatever Redis raises."""
        if not self.is_of_code:
            schedules.put(self.definition())
        schedules.pause(self.name, not self.is_enabled)


def enabled_rows() -> list[ScheduleDefinition]:
    """The schedules of the admin's rows that are not paused. Raises InvalidOption."""
    if not has_table(PeriodicJob, router.db_for_write(PeriodicJob)):
        return []
    rows = PeriodicJob.objects.filter(source=Source.ADMIN, is_enabled=True)
    return [row.definition() for row in rows.order_by("name")]


def log_wrong_row(name: str, problem: str) -> None:
    """Log that the schedule of a row cannot run, or not as the row says."""
    #: A schedule made in the admin is wrong, or the code has one with the same name.
    #: Correct or delete its row.
    logger.error("the schedule %s does not run as its row says: %s", name, problem)


def _try(name: str, change: Any) -> None:
    """Maintenance compares rows with Redis, so a change that fails here is applied later."""
    try:
        change()
    except InvalidOption as error:  # the row was not validated
        log_wrong_row(name, str(error))
    except RedisQueueError as error:
        #: Redis does not answer, so a schedule that was changed in the admin runs as before. A
        #: worker applies the change within a minute after Redis is back.
        logger.warning("a change of schedules reaches Redis later: %s", error)
