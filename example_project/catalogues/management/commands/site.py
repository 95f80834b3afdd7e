from __future__ import annotations

import argparse
import secrets
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management import call_command
from django.core.management.base import CommandError
from django.core.servers.basehttp import (
    ThreadedWSGIServer,
    WSGIRequestHandler,
    get_internal_wsgi_application,
)
from django.urls import reverse
from reports.management.commands.makereportdata import USERS, number

from django_redisqueue import JobQueue
from django_redisqueue.management.base import QueueCommand

from ...demo.worker import running_worker

USER = "demo"


def address(text: str) -> tuple[str, int]:
    """``host:port``; port 0 is a free one."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not int(port) < 65536:
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
        server = listen(*options["address"])
        JobQueue("default").get_stats()  # the first call to Redis starts the embedded server
        call_command("migrate", verbosity=0, interactive=False)
        call_command("makereportdata", users=options["users"], keep=True, stdout=self.stdout)
        password = make_user()
        try:
            with running_worker(options["processes"]) as worker:
                base = f"http://{options['address'][0]}:{server.server_port}"
                self.stdout.write(
                    f"The site:   {base}/\n"
                    f"Reports:    {base}/reports/\n"
                    f"Dashboard:  {base}{reverse('admin:django_redisqueue_overview')}\n"
                    f"Its admin:  {base}/admin/  user {USER}, password {password}\n"
                    f"A worker is running as well (pid {worker.process.pid}). Ctrl-C stops both."
                )
                self.stdout.flush()
                server.serve_forever()
        except KeyboardInterrupt:
            self.stdout.write("The site and its worker have stopped.")


def listen(host: str, port: int) -> ThreadedWSGIServer:
    """The server that ``runserver`` runs, already listening. ``runserver`` itself listens last, and
    exits at once if it cannot, which would leave the worker running."""
    try:
        server = ThreadedWSGIServer((host, port), WSGIRequestHandler)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {host}:{port} ({error}); choose another: --address host:port"
        ) from None
    server.daemon_threads = True
    server.set_app(StaticFilesHandler(get_internal_wsgi_application()))
    return server


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
