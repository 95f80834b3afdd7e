"""Celery: solo pool; 10 ms and recovery: prefork; no results; recovery: late acknowledgement."""

from celery import Celery
from work import URL, program, work

PACKAGES = ("celery[redis]", "hiredis")
app = Celery("celery_peer", broker=URL.replace("unix://", "redis+socket://"))
app.conf.update(task_ignore_result=True)
quick = app.task(name="quick")(work)
safe = app.task(name="safe", acks_late=True, reject_on_worker_lost=True)(work)


def enqueue(kind: str, number: int) -> None:
    (safe if kind == "long" else quick).delay(kind, number)


def worker(kind: str) -> list[str] | None:
    if kind == "async":
        return None
    pool = {"ten_ms": ["-c", "8"], "long": ["-c", "1"]}.get(kind, ["-P", "solo"])
    return [program("celery"), "-A", "celery_peer", "worker", "-l", "ERROR", *pool]
