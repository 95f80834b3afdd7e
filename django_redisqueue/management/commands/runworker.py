"""``manage.py runworker``: runs jobs until it is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ... import registry
from ...checks import check_database, run_network_checks
from ...conf import get_settings
from ...connection import worker_link
from ...exceptions import RedisQueueError
from ...ids import check_worker_name
from ...options import MAX_PRIORITY, MIN_PRIORITY
from ...store.transitions import Transitions
from ...targets import get_target
from ...worker.loop import ChildOptions
from ...worker.posts import SupervisorOptions
from ...worker.readiness import wait_for_tables
from ...worker.reconnect import until_answered
from ...worker.relay import Relay
from ...worker.reload import run_reloading
from ...worker.service import Service, WorkerOptions
from .. import arguments
from ..base import PatientCommand

logger = logging.getLogger("django_redisqueue")


class Command(PatientCommand):
    help = "Runs jobs: one supervisor, its child processes, and what keeps the queue in order."

    def add_arguments(self, parser: ArgumentParser) -> None:
        whole = arguments.whole
        parser.add_argument(
            "--queues", type=arguments.checked(arguments.queue_list), metavar="A,B",
            help="queues in strict order: the second only when the first is empty (default: all)",
        )  # fmt: skip
        parser.add_argument(
            "--processes", type=whole(1, 1000), default=os.cpu_count() or 1,
            help="child processes, each runs one job at a time (default: one per core)",
        )  # fmt: skip
        parser.add_argument(
            "--min-priority", type=whole(MIN_PRIORITY, MAX_PRIORITY), default=MIN_PRIORITY,
            help="take only jobs of this priority and above",
        )  # fmt: skip
        parser.add_argument("--burst", action="store_true", help="end when the queues are empty")
        parser.add_argument(
            "--name", type=arguments.checked(check_worker_name), help="a name to know the worker by"
        )
        parser.add_argument(
            "--grace", type=arguments.seconds, default=25.0,
            help="seconds that running jobs have to finish after SIGTERM (default: 25)",
        )  # fmt: skip
        parser.add_argument(
            "--max-jobs", type=whole(0, 10**9), default=0, help="renew a child after so many jobs"
        )
        parser.add_argument(
            "--max-memory", type=arguments.size, default=0, metavar="300M",
            help="renew a child, after its job, that uses more memory",
        )  # fmt: skip
        parser.add_argument(
            "--async-concurrency", type=whole(1, 10_000), default=100,
            help="async jobs that one child runs at a time (default: 100)",
        )  # fmt: skip
        parser.add_argument(
            "--async-db-connections", type=whole(1, 1000), default=10,
            help="of them, how many may hold database connections (default: 10)",
        )  # fmt: skip
        parser.add_argument(
            "--heartbeat-file",
            type=arguments.new_file,
            help="written at every heartbeat; see the probe",
        )
        parser.add_argument(
            "--autoreload", action="store_true", help="start again when code changes"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _log_to_stderr(options["verbosity"])
        if options["autoreload"]:
            sys.exit(run_reloading())
        if os.getpid() == 1:  # the kernel spares it as long as it has no handler
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            service = Service(_worker_options(options))
            self._say_hello(service, options)
            _wait_for_redis()
            wait_for_tables(get_settings())
            if options["burst"]:
                _send_what_waits()
            _say_what_is_wrong()
        except RedisQueueError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("stopped before it took a job", returncode=130) from None
        code = service.run()
        self.stdout.write("worker stopped" if code == 0 else "worker stopped; see the log")
        if code:
            sys.exit(code)

    def _say_hello(self, service: Service, options: dict[str, Any]) -> None:
        queues = options["queues"] or tuple(get_settings().queues)
        mirror = ", one for the mirror" if get_settings().mirror else ""
        self.stdout.write(
            f"django_redisqueue worker {service.worker.name}\n"
            f"  queues     {', '.join(queues)}\n"
            f"  processes  {options['processes']} (and one for maintenance{mirror})\n"
            f"  redis      {get_target().address}\n"
            f"  tasks      {len(registry.task_names())}\n"
            "Stop with Ctrl-C or SIGTERM; a second time stops at once."
        )
        self.stdout.flush()


def _worker_options(options: dict[str, Any]) -> WorkerOptions:
    return WorkerOptions(
        processes=options["processes"],
        name=options["name"],
        heartbeat_file=options["heartbeat_file"],
        supervisor=SupervisorOptions(
            grace=options["grace"], max_memory=options["max_memory"], burst=options["burst"]
        ),
        child=ChildOptions(
            queues=options["queues"] or tuple(get_settings().queues),
            min_priority=options["min_priority"],
            max_jobs=options["max_jobs"],
            burst=options["burst"],
            async_concurrency=options["async_concurrency"],
            async_db_connections=options["async_db_connections"],
        ),
    )


def _wait_for_redis() -> None:
    """A worker that boots before its Redis waits for it."""
    link = worker_link()
    until_answered(lambda resent: link.call("PING"), who="worker")
    link.close()


def _send_what_waits() -> None:
    """What is in an outbox is work, too; the children of a burst would not wait for the relay."""
    link = worker_link()
    relay = Relay(Transitions(link, get_settings()))
    while relay.run_once():
        pass
    link.close()


def _say_what_is_wrong() -> None:
    """The deploy checks, once more where it matters; the worker starts all the same."""
    for message in [*run_network_checks(), *check_database()]:
        logger.log(message.level, "%s", " ".join(str(message).split()))


def _log_to_stderr(verbosity: int) -> None:
    """Show the package's log lines when the project has not configured logging for them."""
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(process)d %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
