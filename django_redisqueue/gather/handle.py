"""Gather: queries that run side by side and meet in one hash (docs/gather.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from ..clock import Duration
from ..codec import loads, stored_name
from ..connection import producer_link
from ..exceptions import CorruptJob, GatherFailed, GatherNotFound, WaitTimeout
from ..gatherdata import GatherData
from ..ids import check_gather_key
from ..jobs import Job
from ..largeresults import read_result
from ..patience import Patience, listen_until
from ..ports import replaced_transport
from ..states import GatherReason, GatherStatus
from ..store.gathers import GatherReads
from ..tasks import DjangoTask, Signature, Task
from .plans import make_plan, send

Ask = Callable[[Callable[[], Any]], Any]  # how Redis is asked: a job waits while it is away


def _once(act: Callable[[], Any]) -> Any:
    return act()


class Gather:
    """A handle of a gather; attributes ask Redis each time. Raises GatherNotFound when they do and
    no gather has the key, or another one has it by now."""

    __slots__ = ("_ask", "id", "key")

    def __init__(self, key: str, gather_id: str, ask: Ask = _once) -> None:
        self.key = key
        self.id = gather_id
        self._ask = ask

    def __repr__(self) -> str:
        return f"<Gather {self.key!r} {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gather) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @classmethod
    def start(
        cls,
        key: str,
        *,
        topic: str,
        payload: Mapping[str, Any] | None = None,
        threshold: int | None = None,
        ttl: Duration = 600,
        polls: int = 6,
        poll_delay: Duration = 60,
        then: Task | Signature | DjangoTask,
        on_failure: Task | Signature | DjangoTask | None = None,
        on_commit: bool | None = None,
    ) -> Gather:
        """Queue a job for every listener of the topic, and ``then`` once ``threshold`` of them (all
        by default) have returned; after the commit inside ``atomic()``.

        ``payload``: the keyword arguments of the listeners, and of ``then`` and ``on_failure`` when
        they are given as tasks. ``ttl``: how long the results live; ``polls`` checks,
        ``poll_delay`` apart (seconds or timedeltas), and the gather fails. Raises InvalidName,
        GatherError, InvalidOption, InvalidArguments or PayloadTooLarge before anything is written,
        GatherExists, RedisUnavailable or RedisRefused.
        """
        plan = make_plan(
            check_gather_key(key), topic=topic, payload=payload, threshold=threshold, ttl=ttl,
            polls=polls, poll_delay=poll_delay, then=then, on_failure=on_failure,
        )  # fmt: skip
        send(plan, on_commit)
        return cls(key, plan.id)

    @property
    def data(self) -> GatherData:
        """All but the results, as of now, in one round trip."""
        found: GatherData | None = self._ask(partial(_read, self.key))
        if found is None or found.id != self.id:
            raise GatherNotFound(
                f"no gather {self.id} under the key {self.key!r}: it never was, its transaction "
                "has not committed, or it has been forgotten after its end"
            )
        return found

    @property
    def status(self) -> GatherStatus:
        return self.data.status

    @property
    def reason(self) -> GatherReason:
        """Why it failed, if it did."""
        return self.data.reason

    @property
    def done_count(self) -> int:
        """How many listeners have a result."""
        return self.data.done_count

    @property
    def missing(self) -> tuple[str, ...]:
        """The listeners without a result; of a failed gather, those when it failed."""
        return self.data.missing

    @property
    def payload(self) -> Mapping[str, Any]:
        """What the listeners were called with, also what their tasks redact."""
        return self.data.payload

    @property
    def results(self) -> dict[str, Any]:
        """What the listeners have returned, by their names; large results are read from storage.

        Raises ResultGone when somebody has deleted such a file.
        """
        data = self.data
        texts = self._ask(partial(_read_results, self.key))
        return {name: _value(texts[name]) for name in data.listeners if name in texts}

    async def aresults(self) -> dict[str, Any]:
        """``results`` for async code."""
        return await sync_to_async(lambda: self.results)()

    @property
    def follow_up(self) -> Job | None:
        """The job that its end enqueued: of ``then`` or ``on_failure``. None while it collects, and
        when it failed without ``on_failure``."""
        job_id = self.data.follow_up_id
        return Job(job_id) if job_id else None

    def jobs(self) -> list[Job]:
        """The listeners' jobs, in the order of ``data.listeners``."""
        return [Job(f"{self.id}.{n}") for n in range(len(self.data.listeners))]

    def wait(self, timeout: Duration | None = None) -> GatherData:
        """Wait until the threshold is reached. Raises WaitTimeout, or GatherFailed with who was
        missing. Woken by a message of its own; does not poll."""
        patience = Patience(timeout, lambda _: self._late())
        if replaced_transport() is None:
            keys = GatherReads(producer_link()).keys
            listen_until(keys.done(self.id), lambda: self.status.is_final, patience)
        data = self.data
        if data.status is GatherStatus.COLLECTING:
            raise WaitTimeout(self._late())
        if data.status is GatherStatus.FAILED:
            raise GatherFailed(f"{self!r} failed ({data.reason}): {_outline(data)}")
        return data

    def _late(self) -> str:
        return f"{self!r} had not ended in time: {_outline(self.data)}"


def get_gather(key: str) -> Gather:
    """The gather that has this key now. Raises InvalidName or GatherNotFound."""
    found = _read(check_gather_key(key))
    if found is None:
        raise GatherNotFound(
            f"no gather has the key {key!r}: it never was, its transaction has not committed, or "
            "it has been forgotten after its end"
        )
    return Gather(key, found.id)


def gather_of(job_id: str, ask: Ask = _once) -> Gather | None:
    """The gather that a job belongs to, or None."""
    gather_id, _, name = job_id.rpartition(".")
    if not (name and gather_id.startswith("gather_")):
        return None
    key = ask(lambda: (replaced_transport() or GatherReads(producer_link())).key_of(job_id))
    return Gather(key, gather_id, ask) if key else None


def _read(key: str) -> GatherData | None:
    transport = replaced_transport()
    if transport is not None:
        return transport.gather_data(key)
    return GatherReads(producer_link()).gather(key)


def _read_results(key: str) -> Mapping[str, str]:
    transport = replaced_transport()
    if transport is not None:
        return transport.gather_results(key)
    return GatherReads(producer_link()).results(key)


def _value(text: str) -> Any:
    try:
        name = stored_name(text)
        return read_result(name) if name else loads(text)
    except (ValueError, KeyError) as error:
        raise CorruptJob(f"a result of the gather cannot be read: {error}") from None


def _outline(data: GatherData) -> str:
    return (
        f"{data.done_count} of {len(data.listeners)} listeners have a result, {data.threshold} are "
        f"needed; missing: {', '.join(data.missing) or 'none'}"
    )
