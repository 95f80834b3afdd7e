from django_redisqueue import task
from django_redisqueue.models import OutboxJob
from tests.app.models import Order
from tests.support.burst import work


@task
def receipt(order_id): ...


def check(page):
    Order.objects.create(pk=7)
    settled = page.settle.enqueue(7)
    assert OutboxJob.objects.filter(pk=settled.id).exists()
    hidden = page.charge.enqueue(7, card="4111-1111")
    work()
    assert settled.wait(timeout=10) == 7
    assert Order.objects.get(pk=7).paid
    hidden.refresh()
    assert (hidden.status, hidden.kwargs) == ("completed", {"card": "[redacted]"})
