"""What a project's own code does, in a process of either version: ``act.py VERB``."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import django

django.setup()

from django.apps import apps  # noqa: E402
from django.core import serializers  # noqa: E402
from django.db import transaction  # noqa: E402

from django_redisqueue import Gather, JobQueue, Workflow  # noqa: E402
from tests.upgrade import tasks  # noqa: E402


def fill() -> dict[str, str]:
    """Enqueue jobs that a worker brings into all states; returns their ids by name."""
    names = {
        "completed": tasks.add.enqueue(1, 2).id,
        "receipt": tasks.once.enqueue(5).id,
        "failed": tasks.broken.enqueue().id,
        "retrying": tasks.flaky.enqueue().id,
        "processing": tasks.held.enqueue("alone").id,
    }
    cancelled = tasks.add.using(run_after=timedelta(hours=1)).enqueue(3, 4)
    cancelled.cancel()
    names["cancelled"] = cancelled.id
    names["follower"] = tasks.add.using(after=[names["processing"]]).enqueue(5, 6).id
    with Workflow("half") as flow:
        first = flow.add(tasks.add, 1, 1)
        second = flow.add(tasks.held, "workflow", after=first)
        third = flow.add(tasks.add, 2, 2, after=second)
    names |= {"first": first.id, "second": second.id, "third": third.id, "workflow": flow.id}
    gather = Gather.start("half-gather", topic="upgrade", payload={"number": 7}, then=tasks.merge)
    names["gather"] = gather.key
    return names


def leave() -> dict[str, str]:
    """Jobs that no worker of this version sees, nor any bridge."""
    JobQueue("paused").pause()
    with transaction.atomic():
        stored = tasks.add.using(outbox=True).enqueue(8, 8)
    return {
        "queued": tasks.add.enqueue(1, 1).id,
        "urgent": tasks.add.using(priority=10).enqueue(2, 2).id,
        "redacted": tasks.charge.enqueue(card="4111").id,
        "scheduled": tasks.add.using(run_after=timedelta(seconds=60)).enqueue(3, 3).id,
        "paused": tasks.add.using(queue_name="paused").enqueue(4, 4).id,
        "stored": stored.id,
    }


def strand() -> dict[str, str]:
    """A job that is only in the outbox, because Redis does not answer."""
    with transaction.atomic():
        return {"outbox": tasks.add.using(outbox=True).enqueue(9, 9).id}


def produce(count: str) -> list[str]:
    """Jobs from every path: plain, in a transaction, through the outbox, in a workflow."""
    ids: list[str] = []
    for number in range(int(count)):
        ids.append(tasks.add.enqueue(number, 1).id)
        with transaction.atomic():
            ids.append(tasks.add.enqueue(number, 2).id)
            ids.append(tasks.once.using(outbox=True).enqueue(number).id)
        with Workflow("rolling") as flow:
            first = flow.add(tasks.add, number, 3)
            last = flow.add(tasks.add, number, 4, after=first)
        ids += [first.id, last.id]
    return ids


def rows() -> Any:
    """All rows of the package's tables."""
    tables = apps.get_app_config("django_redisqueue").get_models()
    found = [row for model in tables if not model._meta.proxy for row in model.objects.all()]
    return json.loads(serializers.serialize("json", found))


print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
