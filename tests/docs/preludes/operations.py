import logging

from django_redisqueue import task
from tests.docs.pages import blocks
from tests.support.burst import work
from tests.support.imports import ROOT

records = []


class Collected(logging.Handler):
    def emit(self, record):
        records.append(record)


@task
def charge(): ...


def check(page):
    handler = Collected()
    logging.getLogger("django_redisqueue.jobs").addHandler(handler)
    job = charge.enqueue()
    work()
    (line,) = [record.getMessage() for record in records]
    (block,) = blocks("log", ROOT / "docs" / "operations.md")
    said, told = (dict(word.split("=") for word in text.split()) for text in (line, block.text))
    changing = {"id": job.id, "ms": said["ms"]}
    assert said == told | changing
