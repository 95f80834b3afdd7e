"""Tasks that record every run outside Redis, so that tests can check it after a fault.

A run of ``name`` is the file ``<folder>/<name>.<n>``, which holds pid and time; O_EXCL keeps count.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count as numbers
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.db.backends.signals import connection_created
from django.db.backends.sqlite3.base import DatabaseWrapper

from django_redisqueue import Backoff, task
from django_redisqueue.exceptions import JobCancelled
from tests.app.models import Counter
from tests.app.tasks import block_in_c

NO_DELAY = Backoff(base=0, jitter=0)


def trace(folder: str, name: str) -> int:
    """Record a run; returns its number, starting at 1."""
    for n in numbers(1):
        try:
            file = os.open(Path(folder) / f"{name}.{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            continue
        os.write(file, f"{os.getpid()} {time.time_ns()}".encode())
        os.close(file)
        return n
    raise AssertionError


@task
def run(folder: str, name: str) -> int:
    return trace(folder, name)


@task
def run_then_sleep(folder: str, name: str, seconds: float) -> int:
    n = trace(folder, name)
    time.sleep(seconds)
    return n


@task
def run_until_gate_opens(folder: str, name: str, gate: str) -> None:
    """Ends once the test opens the gate, a FIFO, for writing."""
    trace(folder, name)
    os.close(os.open(gate, os.O_RDONLY))


@task
def run_until_gate_opens_in_c(folder: str, name: str, gate: str) -> None:
    """Like ``run_until_gate_opens``, but in C and holding the GIL."""
    trace(folder, name)
    libc = ctypes.PyDLL(None)
    libc.close(libc.open(gate.encode(), os.O_RDONLY))


@task
def run_then_exit(folder: str, name: str) -> None:
    trace(folder, name)
    os._exit(1)


@task
def run_then_exit_in_order(folder: str, name: str, code: int) -> None:
    """Ends its process with the exit code of an orderly end."""
    trace(folder, name)
    os._exit(code)


@task
def run_then_block(folder: str, name: str, seconds: float) -> None:
    """Like ``run_then_sleep``, but in C and holding the GIL."""
    trace(folder, name)
    block_in_c.call(seconds)


@task(takes_context=True)
def run_then_report(context: Any, folder: str, name: str, seconds: float) -> int:
    """Sleep in short naps and report progress after each."""
    n = trace(folder, name)
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        time.sleep(0.05)
        context.progress(passed, seconds)
    return n


@task(max_attempts=3, backoff=NO_DELAY)
def slow_at_first(folder: str, name: str, seconds: float) -> int:
    """Only sleeps in its first run."""
    n = trace(folder, name)
    if n == 1:
        time.sleep(seconds)
    return n


@task(max_attempts=3, backoff=NO_DELAY)
def stuck_at_first(folder: str, name: str, seconds: float) -> int:
    """Like ``slow_at_first``, but in C."""
    n = trace(folder, name)
    if n == 1:
        block_in_c.call(seconds)
    return n


@task(takes_context=True)
def polite(context: Any, folder: str, name: str, seconds: float) -> str:
    """Returns when it is cancelled."""
    try:
        trace(folder, name)
        time.sleep(seconds)
    except JobCancelled:
        if context.cancelled:
            trace(folder, f"{name}-saw-it")
    return "stopped in order"


@task
def stubborn(folder: str, name: str, seconds: float) -> None:
    """Swallows every interrupt, and records each."""
    trace(folder, name)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0.05)
        except BaseException as error:
            trace(folder, f"{name}-{type(error).__name__}")


@task
def leave_atomic(name: str, seconds: float) -> None:
    """Is interrupted in the middle of a transaction, after a write."""
    with transaction.atomic():
        Counter.objects.create(name=name)
        time.sleep(seconds)


@task
def enter_atomic_by_hand() -> None:
    """Leaves the connection in a transaction, as an interrupt between two lines could."""
    transaction.atomic().__enter__()


@task
def backend() -> int:
    """The process at the other end of the connection to PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@task
def backend_until_gate_opens(gate: str) -> int:
    """``backend``, which ends once the test opens the gate, a FIFO, for writing."""
    pid = backend.func()
    os.close(os.open(gate, os.O_RDONLY))
    return pid


@task
def surrogate_result() -> str:
    """A string like those that os.fsdecode makes from file names that are not UTF-8."""
    return "\udcff"


@task
def surrogate_error() -> None:
    raise ValueError("\udcff\x00\n")


@task
def plain_exit() -> None:
    raise SystemExit(3)


@task
def limit_of_files() -> int:
    """How many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@task
def write_to_standard_streams() -> None:
    """Write to the descriptors themselves, as a library in C does, which ignores errors."""
    for number in (0, 1, 2):
        with suppress(OSError):  # a library that was loaded before the worker started may have one
            os.write(number, b"a library's message\n")


class Panic(BaseException):
    """Neither an Exception nor one of the project's own exceptions."""


@task
def panic() -> None:
    raise Panic("not an Exception")


@task(max_attempts=2, backoff=NO_DELAY, takes_context=True)
def retried_once(context: Any, folder: str, name: str) -> int:
    """Fails in its first attempt, however often that attempt is run."""
    n = trace(folder, name)
    if context.attempt == 1:
        raise ConnectionError("the first attempt")
    return n


@task(max_attempts=4, backoff=NO_DELAY, takes_context=True)
def gives_up(context: Any) -> str:
    """Does something else in its last attempt."""
    if context.attempt < context.max_attempts:
        raise ConnectionError("once more")
    return f"gave up after {context.attempt} of {context.max_attempts}"


@task(max_attempts=4, backoff=NO_DELAY, takes_context=True)
async def async_gives_up(context: Any) -> str:
    return gives_up.func(context)  # type: ignore[no-any-return]


class NoText(SyntaxError):
    """An exception whose traceback cannot be rendered."""

    @property
    def text(self) -> str:
        raise RuntimeError


@task
def no_text() -> None:
    raise NoText


@task
async def async_no_text() -> None:
    raise NoText


@task(max_attempts=3, backoff=[0.1, 0.3])
def fails_thrice() -> None:
    raise ConnectionError("as always")


@task(max_attempts=3, backoff=NO_DELAY, retry_on=(OSError,), no_retry_on=(FileNotFoundError,))
def picky(folder: str, name: str, kind: str) -> None:
    trace(folder, name)
    raise {"os": OSError, "file": FileNotFoundError, "value": ValueError}[kind](kind)


@task
async def async_run(folder: str, name: str, seconds: float) -> int:
    n = trace(folder, name)
    await asyncio.sleep(seconds)
    return n


@task
async def async_run_until_gate_opens(folder: str, name: str, gate: str) -> int:
    """``run_until_gate_opens`` on the event loop."""
    n = trace(folder, name)
    os.close(await asyncio.to_thread(os.open, gate, os.O_RDONLY))
    return n


@task
async def async_run_to_end(folder: str, name: str, seconds: float) -> int:
    n = trace(folder, name)
    await asyncio.sleep(seconds)
    trace(folder, f"{name} to its end")
    return n


async def _exit() -> None:
    raise SystemExit(1)


@task
async def async_exit_aside() -> None:
    """Leaves an asyncio task behind that raises SystemExit."""
    _left.add(asyncio.get_running_loop().create_task(_exit()))


_left: set[asyncio.Task[None]] = set()
_flying: set[object] = set()


@task
async def async_gauge(seconds: float) -> int:
    """How many of these tasks run at the same time, including this one."""
    me = object()
    _flying.add(me)
    await asyncio.sleep(seconds)
    peak = len(_flying)
    _flying.remove(me)
    return peak


@task
def connect_slowly() -> None:
    """Is interrupted just before its database connection is ready."""
    init = DatabaseWrapper.init_connection_state

    def init_slowly(self: DatabaseWrapper) -> None:
        init(self)
        for _ in range(6000):
            time.sleep(0.01)

    with patch.object(DatabaseWrapper, "init_connection_state", init_slowly):
        Counter.objects.count()


@task
def connects() -> bool:
    """Whether its query has to open a connection."""
    made: list[Any] = []

    def note(connection: Any, **_: Any) -> None:
        made.append(connection)

    connection_created.connect(note)
    Counter.objects.count()
    return bool(made)


@task
def block_signals() -> None:
    """Leaves every signal blocked in its thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


@task
async def async_block(folder: str, name: str, seconds: float) -> int:
    """Blocks the event loop, like a forgotten ``requests.get``."""
    n = trace(folder, name)
    time.sleep(seconds)
    return n


_threads: set[int] = set()


def _count_and_nap(seconds: float) -> int:
    """Queries in this thread; returns how many threads have used a connection so far."""
    Counter.objects.count()
    _threads.add(threading.get_ident())
    time.sleep(seconds)
    return len(_threads)


@task
def threads_orm(count: int) -> int:
    """Queries in its own threads."""
    with ThreadPoolExecutor(count) as threads:
        return sum(threads.map(lambda _: Counter.objects.count(), range(count)))


@task
def clear_alarm(seconds: float) -> None:
    """Clears the alarm, as a library's ``signal.alarm`` might, and continues for a while."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(seconds)


@task
async def async_orm(seconds: float) -> int:
    """Queries twice with a pause in between; returns how many database threads there were."""
    await sync_to_async(_count_and_nap)(seconds)
    await asyncio.sleep(0.01)
    return await sync_to_async(_count_and_nap)(seconds)


@task
async def async_orm_aside() -> None:
    """Leaves an asyncio task behind that queries once ``async_orm_of_those_left`` runs."""

    async def query() -> int:
        await _may_query.wait()
        await sync_to_async(_count_and_nap)(0.01)
        return await sync_to_async(_count_and_nap)(0.01)

    _queries.append(asyncio.get_running_loop().create_task(query()))


@task
async def async_orm_of_those_left() -> int:
    """How many database threads there were when all of these have queried twice."""
    _may_query.set()
    return max(await asyncio.gather(*_queries))


_may_query = asyncio.Event()
_queries: list[asyncio.Task[int]] = []


@sync_to_async
def _begin(name: str) -> transaction.Atomic:
    atomic = transaction.atomic()
    atomic.__enter__()
    Counter.objects.create(name=name, value=1)
    return atomic


@sync_to_async
def _visible_and_end(atomic: transaction.Atomic) -> int:
    seen = Counter.objects.count()
    transaction.set_rollback(True)
    atomic.__exit__(None, None, None)
    return seen


@task
async def async_transaction(name: str, seconds: float = 0.05) -> int:
    """How many rows a transaction that is open across an await sees: only its own, if it is
    isolated."""
    atomic = await _begin(name)
    await asyncio.sleep(seconds)
    return await _visible_and_end(atomic)


@task
async def async_in_plain_thread() -> int:
    """Queries in a thread that belongs to no job; returns the process at the other end of the
    connection."""
    return await asyncio.to_thread(backend.func)


async def _spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        continue


async def _spin_in_a_group(seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_spin(seconds))


@task
def spin_in_a_group(seconds: float) -> None:
    asyncio.run(_spin_in_a_group(seconds))


@task
def run_async() -> int:
    """Queries in a coroutine; returns the process at the other end of the connection."""
    return asyncio.run(sync_to_async(backend.func)())


@task
async def async_rows(rows: int) -> int:
    """Reads rows from a cursor that stays open, a few at a time."""
    await Counter.objects.abulk_create([Counter(name=uuid4().hex) for _ in range(rows)])
    seen = 0
    async for _ in Counter.objects.order_by("pk")[:rows].aiterator(chunk_size=1):
        seen += 1
        await asyncio.sleep(0.01)
    return seen


@task(takes_context=True)
async def async_progress(context: Any, rounds: int, seconds: float = 0, note: str = "") -> int:
    """Reports progress in every round; returns the number of rounds."""
    for done in range(1, rounds + 1):
        context.progress(done, done, note)
        await asyncio.sleep(seconds)
    return rounds


@task(takes_context=True)
def wait_for_an_event(context: Any, folder: str, event: str) -> Any:
    """Sleeps and waits without occupying a child; each run leaves a trace."""
    trace(folder, event)
    context.sleep(0.3)
    return context.wait_for(event, timeout=60)


@task(takes_context=True)
async def await_an_event(context: Any, folder: str, event: str) -> Any:
    trace(folder, event)
    await context.asleep(0.3)
    return await context.await_for(event, timeout=60)
