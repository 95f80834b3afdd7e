"""Tells the receivers of one event, in one transaction with the move of the cursor.

Exactly once for all that they do in the mirror's database, and for the jobs that they enqueue
(which go through the outbox of that transaction), whoever dies when, and however many bridges there
are: the cursor is moved first, if it is still before the event, and its row stays locked.

A transaction can be spoilt by a receiver (a database error that it lets out, on PostgreSQL also one
that it swallows; a rollback that it asks for; a constraint that is checked at the commit). Then
nothing of it stays, and this one event is told of again outside of a transaction, each receiver by
itself: at least once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import Error as DatabaseError
from django.db import InternalError, connections, transaction
from django.db.models import Model
from django.db.transaction import TransactionManagementError

from ..models import MirrorState
from ..submit import through_outbox
from .courtesy import Courtesy
from .themes import Theme

logger = logging.getLogger("django_redisqueue")

#: Seconds that count as held of SQLite's lock at most: the mirror does not wait for a receiver.
HELD = 0.05

Answers = Sequence[tuple[Any, Any]]  # of ``send_robust``: receiver, what it returned or raised


class Told:
    """How far a theme is told, as the database has it: ids of events. Forward only.

    In SQL of its own, for Django takes longer to make these two statements than to run them.
    """

    def __init__(self, theme: Theme, alias: str, shard: int) -> None:
        table, field = MirrorState._meta.db_table, theme.cursor
        self._alias = alias
        self._shard = shard
        self._select = f"SELECT {field} FROM {table} WHERE shard = %s"
        self._update = f"UPDATE {table} SET {field} = %s WHERE shard = %s AND {field} < %s"

    def read(self) -> int:
        """The last event that counts as told."""
        with connections[self._alias].cursor() as cursor:
            cursor.execute(self._select, [self._shard])
            row = cursor.fetchone()
        return int(row[0]) if row else 0

    def advance(self, to: int) -> bool:
        """False when it is there already: somebody else was faster."""
        with connections[self._alias].cursor() as cursor:
            cursor.execute(self._update, [to, self._shard, to])
            return bool(cursor.rowcount == 1)


class Teller:
    """Tells of a theme's events, one a call, in their order."""

    def __init__(self, theme: Theme, alias: str, told: Told) -> None:
        self._theme = theme
        self._alias = alias
        self._told = told
        self._courtesy = Courtesy(alias)
        self._lost_at = 0  # the event whose transaction lost its connection

    def __call__(self, event: Any, record: Model) -> None:
        """Tell of an event, unless another bridge has.

        Raises django.db.Error when the database is away: it is to be told of later.
        """
        self._courtesy.wait()
        answers: Answers | None = None
        connection = connections[self._alias]
        try:
            with through_outbox(), transaction.atomic(using=self._alias, durable=True):
                if not self._told.advance(event.id):
                    return
                begun, link = time.monotonic(), connection.connection
                answers = self._send(event, record)
                self._check(event)
                self._isolate_hooks(event, record)
        except DatabaseError as error:
            if answers is None:
                raise  # nobody has heard of it
            is_lost = connection.connection is not link  # Django has made a new one, or will
            self._after_error(event, record, answers, error, is_lost)
        else:
            self._log(event, record, answers)
        self._courtesy.held(min(time.monotonic() - begun, HELD))

    def _send(self, event: Any, record: Model) -> Answers:
        signal = self._theme.signals[event.status]
        try:
            return signal.send_robust(self._theme.record, record=record, event=event)
        except Exception:  # Django cannot log what a receiver without a name has raised
            logger.exception(
                "%s %s: a receiver of %s raised and has no __qualname__ (a partial?), so those "
                "behind it were not called; connect a function instead",
                self._theme.word, record.pk, self._signal_name(event),
            )  # fmt: skip
            return ()

    def _check(self, event: Any) -> None:
        """One look shows all that can spoil a transaction: an error that PostgreSQL has not
        forgotten, a rollback asked for or done, a connection that was closed."""
        if self._told.read() != event.id:
            raise TransactionManagementError("a receiver has ended its transaction")

    def _isolate_hooks(self, event: Any, record: Model) -> None:
        """One hook of ``on_commit`` that raises must not end the bridge, nor keep the hooks of
        other receivers from being called. (Django's ``robust`` fails for a hook without a name.)"""
        said = f"{self._theme.word} {record.pk}: a hook of on_commit by a receiver of "
        hooks: list[Any] = connections[self._alias].run_on_commit
        hooks[:] = [
            (savepoints, _isolated(hook, said + self._signal_name(event)), *rest)
            for savepoints, hook, *rest in hooks
        ]

    def _after_error(
        self, event: Any, record: Model, answers: Answers, error: DatabaseError, is_lost: bool
    ) -> None:
        if self._told.read() >= event.id:  # it was lost with the reply to COMMIT
            self._log(event, record, answers)
            return
        if is_lost and self._lost_at != event.id:  # else it may be a receiver's own doing
            self._lost_at = event.id
            raise error
        self._log_spoilt(event, record, answers, error)
        self._log(event, record, self._send(event, record))
        connections[self._alias].close_if_unusable_or_obsolete()
        self._told.advance(event.id)

    def _log(self, event: Any, record: Model, answers: Answers) -> None:
        for receiver, answer in answers:
            if isinstance(answer, Exception):
                logger.error(
                    "%s %s: the receiver %s of %s raised %r",
                    self._theme.word, record.pk, _name(receiver), self._signal_name(event), answer,
                    exc_info=answer,
                )  # fmt: skip

    def _log_spoilt(
        self, event: Any, record: Model, answers: Answers, error: DatabaseError
    ) -> None:
        logger.error(
            "%s %s: the transaction of the receivers of %s was spoilt by %s (%r) and rolled back; "
            "they are told again, each by itself and not in a transaction. A receiver whose "
            "statements may fail, or that asks for a rollback, is to do so inside "
            "transaction.atomic() and leave it by an exception",
            self._theme.word, record.pk, self._signal_name(event),
            " or ".join(map(_name, _suspects(answers))), error,
        )  # fmt: skip

    def _signal_name(self, event: Any) -> str:
        return f"{self._theme.word}_{event.status}"


def _suspects(answers: Answers) -> list[Any]:
    """Who may have spoilt the transaction: the first that let an error out, unless the error says
    that it was spoilt already; then those before it."""
    for at, (receiver, answer) in enumerate(answers):
        if isinstance(answer, TransactionManagementError | InternalError):
            return [receiver for receiver, _ in answers[:at]]
        if isinstance(answer, DatabaseError):
            return [receiver]
    return [receiver for receiver, _ in answers]


def _isolated(hook: Callable[[], object], said: str) -> Callable[[], None]:
    def call() -> None:
        try:
            hook()
        except Exception:
            logger.exception("%s raised: %s", said, _name(hook))

    return call


def _name(receiver: Any) -> str:
    return str(getattr(receiver, "__qualname__", receiver))
