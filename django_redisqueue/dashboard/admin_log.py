"""The admin's log: an entry for each action that a user has taken."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import Error as DatabaseError
from django.db import router
from django.db.models import Model
from django.http import HttpRequest

from ..health.facts import savepoint

UNLOGGED = "This was done, but the admin's log lacks it: the database did not accept the entry."
logger = logging.getLogger("django_redisqueue.dashboard")


@contextmanager
def logging_done(request: HttpRequest, what: str) -> Iterator[None]:
    """Write entries in the block, about an action that Redis has carried out. If the database
    refuses them, an error page would make the user repeat the action: a message says so instead."""
    try:
        with savepoint(LogEntry, router.db_for_write(LogEntry)):
            yield
    except DatabaseError as error:
        #: A user has acted in the admin, but the database did not accept the entry for the admin's
        #: log. This line says who did what instead. Look at the database.
        logger.error("%s, by %s: not in the admin's log: %s", what, request.user, error)
        messages.error(request, UNLOGGED)


def entries(
    request: HttpRequest, model: type[Model], objects: Sequence[tuple[str | None, str]], what: str
) -> list[LogEntry]:
    """An unsaved entry for each object, given as (primary key, name)."""
    assert request.user.pk is not None, "the admin has checked the login"
    content_type = ContentType.objects.get_for_model(model)
    return [
        LogEntry(
            user_id=request.user.pk,
            content_type=content_type,
            object_id=pk,
            object_repr=name[:200],
            action_flag=CHANGE,
            change_message=what,
        )
        for pk, name in objects
    ]
