from types import SimpleNamespace

from django_redisqueue import JobQueue
from tests.support.burst import work

document = SimpleNamespace(pk=0, tenant_id=7)
calls = []


def bulk(ids):
    calls.append(ids)
    return [SimpleNamespace(status=400 if one == 2 else 200, text="too long") for one in ids]


search = SimpleNamespace(bulk=bulk)


def check(page):
    page.index.enqueue_many([(n, 7) for n in range(1, 100)])  # the chunk is full
    work()
    assert calls == [list(range(100))]
    (failed,) = JobQueue("default").get_jobs("failed")
    assert failed.args == (2, 7)
    assert "too long" in failed.error.message
    JobQueue("default").clear("failed")
