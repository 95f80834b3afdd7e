"""``context.iterate`` and ``aiterate``: walks over many items.

A walk continues where an earlier run of the job stopped. Its cursor, the key of the last finished
item, is saved after each chunk: in Redis or, for ``exactly_once`` tasks, in the transaction of the
chunk's rows.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import FieldDoesNotExist
from django.db.models import Field, Manager, Model, Q, QuerySet

from ...core.codec import dumps, loads
from ...exceptions import StepError, short_repr
from ...outbox.receipts import CursorReceipt, current_unit
from .steps import Steps, in_thread

SAVE_INTERVAL = 5.0  # s between two saves, if the items of a chunk are slow

Keyed = tuple[Any, Any]  # an item and its key


@dataclass(frozen=True, slots=True)
class Position:
    """How far a walk is: the key of the last item, the number of items done, and the total."""

    after: Any = None
    done: int = 0
    total: int = 0
    is_over: bool = False

    def moved_to(self, key: Any) -> Position:
        """The position once the item with this key is done."""
        return replace(self, after=key, done=self.done + 1)


class SequenceSource:
    """A list, a tuple or a range; the key of an item is its index."""

    reads_database = False

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def count(self) -> int:
        return len(self._items)

    def page(self, after: Any, size: int) -> Sequence[Keyed]:
        """The next items after a key, each with its own key; None means from the beginning."""
        first = 0 if after is None else after + 1
        return [(item, at) for at, item in enumerate(self._items[first : first + size], first)]


class QuerySetSource:
    """The rows of a queryset by a unique key: every page costs the same, wherever it is."""

    reads_database = True

    def __init__(self, queryset: QuerySet[Any]) -> None:
        self._model = queryset.model
        query = queryset.query
        if query.is_sliced or query.combinator:
            raise StepError(
                "iterate needs a queryset without slices and unions, because it filters it by the "
                "cursor; filter it by a condition instead"
            )
        if not query.standard_ordering:
            raise self._wrong_order("reverse() turns it around; name it, such as order_by('-pk')")
        order = [name for one in query.order_by or ("pk",) for name in self._expanded(one)]
        self._fields = [self._field(name) for name in order]
        self._check_unique([field for field, _ in self._fields])
        self._rows = queryset.order_by(*order)

    def count(self) -> int:
        return self._rows.count()

    def page(self, after: Any, size: int) -> Sequence[Keyed]:
        found = self._rows if after is None else self._rows.filter(self._rows_after(after))
        return [(row, self._key(row)) for row in found[:size]]

    def _key(self, row: object) -> list[str]:
        if not isinstance(row, Model):
            raise StepError(
                f"iterate needs a queryset of rows, not of values such as {short_repr(row)}; use "
                "only() to read fewer columns"
            )
        return [field.value_to_string(row) for field, _ in self._fields]

    def _rows_after(self, after: Sequence[str]) -> Q:
        """The rows after a key: a later field decides where the earlier ones are equal."""
        condition, equal = Q(), Q()
        for (field, is_descending), text in zip(self._fields, after, strict=True):
            value = field.to_python(text)
            further = Q(**{f"{field.attname}__{'lt' if is_descending else 'gt'}": value})
            condition |= equal & further
            equal &= Q(**{field.attname: value})
        return condition

    def _expanded(self, name: object) -> Sequence[str]:
        """The names that ``pk`` stands for."""
        if not isinstance(name, str) or name == "?":
            raise self._wrong_order(f"{short_repr(name)} is not a field")
        sign = "-" if name.startswith("-") else ""
        if name.lstrip("-+") != "pk":
            return [name]
        return [f"{sign}{field.attname}" for field in self._model._meta.pk_fields]

    def _field(self, name: str) -> tuple[Field[Any, Any], bool]:
        bare = name.lstrip("-+")
        try:
            field = self._model._meta.get_field(bare)
        except FieldDoesNotExist:
            raise self._wrong_order(f"{bare!r} is not a field of it") from None
        if not isinstance(field, Field) or bare not in (field.attname, field.name):
            raise self._wrong_order(f"{bare!r} is not a column of it")
        if field.is_relation and bare != field.attname:
            raise self._wrong_order(f"{bare!r} is a relation; use {field.attname!r}")
        if field.null:
            raise self._wrong_order(f"{bare!r} may be NULL, after which no row can be found")
        return field, name.startswith("-")

    def _check_unique(self, fields: Sequence[Field[Any, Any]]) -> None:
        names, meta = {field.name for field in fields}, self._model._meta
        together = [set(one.fields) for one in meta.total_unique_constraints]
        together.append({field.name for field in meta.pk_fields})
        if not (any(field.unique for field in fields) or any(one <= names for one in together)):
            listed = ", ".join(field.name for field in fields)
            raise self._wrong_order(f"{listed} may be equal in two rows; add 'pk' as the last")

    def _wrong_order(self, why: str) -> StepError:
        return StepError(
            f"iterate needs a unique order of {self._model.__name__}, such as order_by('pk'): {why}"
        )


ItemSource = SequenceSource | QuerySetSource  # items in an order that does not change


def source_of(items: object) -> ItemSource:
    """The source of these items. Raises StepError if they cannot be walked over in parts."""
    if isinstance(items, Manager):
        items = items.all()
    if isinstance(items, QuerySet):
        return QuerySetSource(items)
    if isinstance(items, Sequence) and not isinstance(items, str | bytes):
        return SequenceSource(items)
    raise StepError(
        f"iterate needs a queryset, or a list, tuple or range, not {short_repr(items)}: it must "
        "find its place again in a later run"
    )


class Cursor:
    """Where a walk keeps its position: among the job's steps, and for an ``exactly_once`` job with
    its rows. The steps then have a copy, which shows that the job makes progress."""

    def __init__(self, steps: Steps, field: str) -> None:
        unit = current_unit()
        self._steps = steps
        self._field = field
        self._receipt = None if unit is None else CursorReceipt(unit, field)

    def read(self) -> str | None:
        return self._steps.get(self._field) if self._receipt is None else self._receipt.read()

    def write(self, body: str) -> None:
        if self._receipt is not None:
            self._receipt.write(body)
        self._steps.save(self._field, body)


class Walk:
    """One walk. ``stop`` returns the exception that ends the job here, or None; ``report`` gets
    done and total."""

    def __init__(
        self,
        source: ItemSource,
        cursor: Cursor,
        size: int,
        total: int | None,
        walking: Callable[[], AbstractContextManager[None]],
        stop: Callable[[], BaseException | None],
        report: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._cursor = cursor
        self._size = size
        self._total = total
        self._walking = walking
        self._stop = stop
        self._report = report
        self._saved_at = time.monotonic()

    def __iter__(self) -> Iterator[Any]:
        with self._walking():
            at = _position(self._cursor.read()) or Position(total=self._count())
            while not at.is_over:
                page = self._source.page(at.after, self._size)
                for item, key in page:
                    yield item
                    at = at.moved_to(key)
                    stopped = self._stop()
                    if stopped is not None or self._is_late():
                        self._save(at)
                    if stopped is not None:
                        raise stopped
                at = replace(at, is_over=len(page) < self._size)
                self._save(at)

    async def __aiter__(self) -> AsyncIterator[Any]:
        """The same walk; it reads the source and the cursor in threads."""
        with self._walking():
            stored = await in_thread(self._cursor.read)()
            at = _position(stored) or Position(total=await self._of_source(self._count))
            while not at.is_over:
                page = await self._of_source(self._source.page, at.after, self._size)
                for item, key in page:
                    yield item
                    at = at.moved_to(key)
                    stopped = self._stop()
                    if stopped is not None or self._is_late():
                        await self._asave(at)
                    if stopped is not None:
                        raise stopped
                at = replace(at, is_over=len(page) < self._size)
                await self._asave(at)

    def _count(self) -> int:
        return self._source.count() if self._total is None else self._total

    async def _of_source(self, ask: Callable[..., Any], *args: Any) -> Any:
        """The source's answer, from the job's database connection if a read is needed."""
        return await sync_to_async(ask)(*args) if self._source.reads_database else ask(*args)

    def _is_late(self) -> bool:
        return time.monotonic() - self._saved_at > SAVE_INTERVAL

    def _save(self, at: Position) -> None:
        self._cursor.write(dumps(asdict(at)))
        self._note_saved(at)

    async def _asave(self, at: Position) -> None:
        await in_thread(self._cursor.write)(dumps(asdict(at)))
        self._note_saved(at)

    def _note_saved(self, at: Position) -> None:
        self._saved_at = time.monotonic()
        self._report(at.done, max(at.total, at.done))


def _position(text: str | None) -> Position | None:
    return None if text is None else Position(**loads(text))
