from __future__ import annotations

import argparse
import secrets
import socket
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandError
from django.urls import reverse
from reports.management.commands.makereportdata import USERS, number

from django_redisqueue import JobQueue
from django_redisqueue.management.base import QueueCommand

from ...demo.worker import running_worker

USER = "demo"


def address(text: str) -> tuple[str, int]:
    """``host:port``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"must be host:port, such as 127.0.0.1:8000, not {text!r}")
    return host, int(port)


class Command(QueueCommand):
    help = "Runs the example site and a worker, and prints how to log in. Requires DEBUG."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--address", type=address, default=("127.0.0.1", 8000))
        parser.add_argument(
            "--users", type=number, default=USERS, help=f"created if there are none ({USERS:,})"
        )
        parser.add_argument("--processes", type=int, default=3, help="of the worker (3)")

    def handle(self, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("The site creates a superuser, so it requires DEBUG = True.")
        host, port = options["address"]
        _check_free(host, port)
        JobQueue("default").get_stats()  # the first call to Redis starts the embedded server
        call_command("migrate", verbosity=0, interactive=False)
        call_command("makereportdata", users=options["users"], keep=True, stdout=self.stdout)
        password = make_user()
        try:
            with running_worker(options["processes"]) as worker:
                base = f"http://{host}:{port}"
                self.stdout.write(
                    f"The site:   {base}/\n"
                    f"Reports:    {base}/reports/\n"
                    f"Dashboard:  {base}{reverse('admin:django_redisqueue_overview')}\n"
                    f"Its admin:  {base}/admin/  user {USER}, password {password}\n"
                    f"A worker is running as well (pid {worker.process.pid}). Ctrl-C stops both."
                )
                self.stdout.flush()
                call_command(
                    "runserver", f"{host}:{port}", use_reloader=False, verbosity=0, skip_checks=True
                )
        except KeyboardInterrupt:
            self.stdout.write("The site and its worker have stopped.")


def make_user() -> str:
    """Give a superuser a new password, and return it."""
    password = secrets.token_urlsafe(12)
    user, _ = get_user_model()._default_manager.get_or_create(
        **{get_user_model().USERNAME_FIELD: USER}
    )
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(password)
    user.save()
    return password


def _check_free(host: str, port: int) -> None:
    """If runserver cannot listen, it exits at once, which would leave the worker running."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CommandError(
                f"cannot listen on {host}:{port} ({error}); choose another: --address host:port"
            ) from None
