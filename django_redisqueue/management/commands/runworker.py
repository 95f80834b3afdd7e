"""``manage.py runworker``: runs jobs until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from threading import Event, Thread
from typing import Any, TypeVar

from django.conf import settings
from django.core.checks import ERROR, CheckMessage
from django.core.management.base import CommandError
from django.db import connections

from ...broker.commands import Commands
from ...broker.connection import RedisConnection, worker_connection
from ...broker.failures import retry_until_answered
from ...broker.redis_url import redis_address
from ...broker.shards import AllShards, agree_on_shards
from ...checks import check_database
from ...checks.network import check_servers
from ...client import registry
from ...client.options import MAX_PRIORITY, MIN_PRIORITY
from ...conf import get_settings
from ...core.ids import check_worker_name
from ...exceptions import (
    ConfigurationError,
    RedisCannotSave,
    RedisFull,
    RedisQueueError,
    RedisRefused,
    RedisUnavailable,
)
from ...outbox.relay import Relay
from ...worker.options import WorkerOptions
from ...worker.readiness import check_mirror_database, wait_for_tables
from ...worker.reload import run_with_autoreload
from ...worker.service import Service
from .. import base
from ..base import QueueCommand

logger = logging.getLogger("django_redisqueue")

Answer = TypeVar("Answer")
#: Checks that find a server for which a worker would wait forever: a replica, a cluster's node.
WRONG_SERVER = ("django_redisqueue.E011", "django_redisqueue.E024")
TRANSIENT = (RedisUnavailable, RedisFull, RedisCannotSave)  # errors that can be waited out
MAX_THREADS = 1000  # per child; more would only wait for each other
BEAT = 5.0  # s between two heartbeats while the worker waits for its database


class Command(QueueCommand):
    help = "Runs jobs: one supervisor, its child processes, and the queue's maintenance."

    def add_arguments(self, parser: ArgumentParser) -> None:
        integer = base.integer
        parser.add_argument(
            "--queues", type=base.argument(base.queue_list), metavar="A,B",
            help="queues in strict order: the second only if the first is empty (default: all)",
        )  # fmt: skip
        parser.add_argument(
            "--processes", type=integer(1, 1000), default=os.cpu_count() or 1,
            help="child processes, each of which runs one job at a time (default: one per core)",
        )  # fmt: skip
        parser.add_argument(
            "--threads", type=integer(1, MAX_THREADS), default=1,
            help="sync jobs that one child runs at a time, for tasks that wait for the network or "
            "a disk; a waiting thread cannot be interrupted, see docs/threads.md (default: 1)",
        )  # fmt: skip
        parser.add_argument(
            "--min-priority", type=integer(MIN_PRIORITY, MAX_PRIORITY), default=MIN_PRIORITY,
            help="take only jobs with this priority or above",
        )  # fmt: skip
        parser.add_argument("--burst", action="store_true", help="exit when the queues are empty")
        parser.add_argument(
            "--name", type=base.argument(check_worker_name),
            help="the worker's name on the dashboard and in logs (default: host and pid)",
        )  # fmt: skip
        parser.add_argument(
            "--grace", type=base.seconds, default=25.0,
            help="seconds that running jobs have to finish after SIGTERM (default: 25)",
        )  # fmt: skip
        parser.add_argument(
            "--max-jobs", type=integer(0, 10**9), default=0,
            help="replace a child after this many jobs (default: 0, never)",
        )  # fmt: skip
        parser.add_argument(
            "--max-memory", type=base.size, default=0, metavar="300M",
            help="replace a child that uses more memory, once its job ends; only on Linux "
            "(default: 0, never)",
        )  # fmt: skip
        parser.add_argument(
            "--async-concurrency", type=integer(1, 10_000), default=100,
            help="async jobs that one child runs at a time (default: 100)",
        )  # fmt: skip
        parser.add_argument(
            "--async-db-connections", type=integer(1, 1000), default=10,
            help="how many of the async jobs may hold database connections (default: 10)",
        )  # fmt: skip
        parser.add_argument(
            "--heartbeat-file", type=base.writable_path,
            help="a file that is written on every heartbeat, for probes",
        )  # fmt: skip
        parser.add_argument("--autoreload", action="store_true", help="restart when code changes")

    def handle(self, *args: Any, **options: Any) -> None:
        _open_standard_streams()
        _log_to_stderr(options["verbosity"])
        if options["autoreload"]:
            sys.exit(run_with_autoreload())
        if os.getpid() == 1:  # the kernel ignores signals without a handler
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        check_mirror_database(get_settings())
        try:
            service = Service(_worker_options(options))
            self._write_banner(service, options)
            code, unsent = _run(service, options["burst"])
        except KeyboardInterrupt:  # which `run` handles itself once it has children
            raise CommandError("stopped before it took a job", returncode=130) from None
        self.announce("worker stopped" if code == 0 else "worker stopped; see the log")
        if code:
            sys.exit(code)
        if unsent:
            raise CommandError(
                "some jobs of the outbox could not be sent before the burst, so it may not have "
                f"run them; run it again ({'; '.join(unsent)})"
            )

    def _write_banner(self, service: Service, options: dict[str, Any]) -> None:
        queues = options["queues"] or tuple(get_settings().queues)
        mirror = ", one for the mirror" if get_settings().mirror else ""
        tasks = [name for name in registry.task_names() if not registry.is_own(name)]
        threads = f" with {options['threads']} threads each" if options["threads"] > 1 else ""
        self.announce(
            f"django_redisqueue worker {service.worker.name}\n"
            f"  queues     {', '.join(queues)}\n"
            f"  processes  {options['processes']}{threads} (and one for maintenance{mirror})\n"
            f"  redis      {redis_address()}\n"
            f"  tasks      {len(tasks)}\n"
            "Stop with Ctrl-C or SIGTERM; a second time stops immediately."
        )


def _open_standard_streams() -> None:
    """Open those that are closed on /dev/null. Otherwise the worker's pipes would get their
    numbers, and a library that prints would write into them."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)


def _run(service: Service, burst: bool) -> tuple[int, list[str]]:
    """Wait for Redis and the tables, and run the worker. Returns its exit code, and for a burst why
    jobs stayed in the outbox. A worker that waits is alive for the probe: a restart is no help."""
    heartbeat_file = service.heartbeat_file
    try:
        away, messages = _wait_for_redis(partial(heartbeat_file.write, False))
        with _beating(partial(heartbeat_file.write, True)):
            wait_for_tables(get_settings())
            unsent = _relay_outbox(away) if burst else []
            _log_checks([*messages, *check_database()])
        return service.run(away), unsent
    finally:
        heartbeat_file.remove()


@contextmanager
def _beating(beat: Callable[[], None]) -> Iterator[None]:
    """Call ``beat`` at intervals, however long the block waits for a database that hangs."""
    is_over = Event()

    def run() -> None:
        while not is_over.wait(BEAT):
            beat()

    beat()
    thread = Thread(target=run, name="heartbeat file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _worker_options(options: dict[str, Any]) -> WorkerOptions:
    names = {field.name for field in fields(WorkerOptions)} - {"queues"}
    queues = options["queues"] or tuple(get_settings().queues)
    return WorkerOptions(queues=queues, **{name: options[name] for name in names})


def _wait_for_redis(beat: Callable[[], None]) -> tuple[Collection[int], list[CheckMessage]]:
    """Wait if Redis is not up yet or refuses writes; ``beat`` is called before each try. Returns
    the shards that do not answer, while others do, and what the deploy check finds.

    Raises errors that waiting cannot change: RedisRefused for a wrong login or a server that is not
    a cluster, ConfigurationError for another wrong server, and ShardMismatch.
    """
    connection = worker_connection()

    def check() -> tuple[Collection[int], list[CheckMessage]]:
        beat()
        return _check_redis(AllShards(connection.at))

    found = _retry_transient(check)
    connection.close_all()
    return found


def _check_redis(shards: AllShards) -> tuple[Collection[int], list[CheckMessage]]:
    _ping(shards)
    messages = check_servers(shards)
    for message in messages:
        if message.id in WRONG_SERVER and not message.is_silenced():
            raise ConfigurationError(f"{message.msg} {message.hint}")
    agree_on_shards(shards)
    return shards.missing.keys(), messages


def _ping(shards: AllShards) -> None:
    """Ask all shards. Raises the error of one that answers and refuses for good, and
    RedisUnavailable if none answers."""

    def ping(connection: RedisConnection) -> None:
        with suppress(RedisCannotSave):  # PING is refused like a write, but that is an answer
            connection.call("PING")

    try:
        shards.each(ping)
    except RedisQueueError:
        if all(isinstance(error, RedisUnavailable) for error in shards.missing.values()):
            raise
    for error in shards.missing.values():
        if isinstance(error, RedisRefused):
            raise error


def _retry_transient(ask: Callable[[], Answer]) -> Answer:
    """Call ``ask`` until Redis answers and accepts writes. Raises errors that are not transient."""
    return retry_until_answered(
        lambda _: ask(), who="worker", give_up=lambda error: not isinstance(error, TRANSIENT)
    )


def _relay_outbox(away: Collection[int]) -> list[str]:
    """Send the jobs of the outbox before a burst, whose children would not wait for the relay.
    Returns the reasons why some stay in the outbox: their shard is ``away`` and was tried once, or
    a full Redis refuses them until jobs have run."""
    connection, settings = worker_connection(), get_settings()
    problems: list[str] = []
    for shard in range(settings.shards):
        commands = Commands(connection.at(shard), settings)
        relays = {alias: Relay(commands, alias) for alias in connections}
        try:
            if shard in away:
                _relay_all(relays.values())
            else:
                _retry_transient(partial(_relay_all, relays.values()))
        except RedisUnavailable as error:
            problems.append(str(error))
        problems += [
            f"outbox of database {alias!r}: {relay.problem}"
            for alias, relay in relays.items()
            if relay.problem
        ]
    connection.close_all()
    return problems


def _relay_all(relays: Collection[Relay]) -> None:
    for relay in relays:
        while relay.run_once():
            continue


def _log_checks(messages: Iterable[CheckMessage]) -> None:
    """Log what the deploy checks found, except silenced messages. The worker starts anyway.

    Warnings are advice for production: while DEBUG is on, they are shown from verbosity 2.
    """
    for message in messages:
        is_advice = settings.DEBUG and message.level < ERROR
        if not message.is_silenced():
            level = logging.DEBUG if is_advice else message.level
            #: What a system check found as the worker started; the worker starts all the same.
            #: checks.md explains each. The level is the check's.
            logger.log(level, "%s", " ".join(str(message).split()))


def _log_to_stderr(verbosity: int) -> None:
    """Show the package's log lines if the project has not configured logging for them. Jobs that
    complete are shown from verbosity 2: a line takes longer than a short job."""
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(process)d %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
    jobs = logging.getLogger("django_redisqueue.jobs")
    if verbosity < 2 and jobs.level == logging.NOTSET:
        jobs.setLevel(logging.WARNING)
