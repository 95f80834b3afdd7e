import io
import logging

import sentry_sdk
from django.test import Client
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from django_redisqueue import JobQueue, task
from tests.support.burst import work

sent = []


class Collected(Transport):
    def capture_envelope(self, envelope: Envelope) -> None:
        sent.append(envelope.get_event())


def init(start=sentry_sdk.init, **options):
    """Without the integrations that change the whole process permanently."""
    start(
        default_integrations=False, auto_enabling_integrations=False, transport=Collected, **options
    )
    cleanup.callback(sentry_sdk.get_global_scope().set_client, None)


cleanup.callback(setattr, sentry_sdk, "init", sentry_sdk.init)
sentry_sdk.init = init


@task
def deliver():
    logging.getLogger("shop").warning("nobody opens")
    raise ConnectionError("nobody opens")


def check(page):
    response = Client().get("/jobs/stats", headers={"X-Request-ID": "r-1"})
    assert response["X-Request-ID"] == "r-1"
    page.ShopConfig.ready(None)
    [console] = logging.getLogger().handlers
    written = console.setStream(io.StringIO()) and console.stream
    job = deliver.enqueue()
    work()
    assert f"WARNING [{job.id} {deliver.name}] nobody opens\n" in written.getvalue()
    assert [event["tags"]["redisqueue.task"] for event in sent] == [deliver.name]
    JobQueue("default").clear("failed")
