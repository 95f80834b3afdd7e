from django_redisqueue import JobQueue, Limit, task
from tests.support.burst import work


@task(concurrency=Limit(2, key="customer"))
def report(customer): ...


def check(page):
    charged = page.charge.enqueue("acme", amount=100)
    work()
    charged.refresh()
    assert charged.status == "completed"
