from types import SimpleNamespace

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType

from django_redisqueue.models import Approval
from tests.app.models import Order
from tests.support.burst import work

order_id, amount, customer = 42, 100, "Ada"
order, payment = SimpleNamespace(id=order_id), SimpleNamespace(id="p-1")
done = []
shop = ContentType.objects.create(app_label="shop", model="order")
Permission.objects.create(codename="approve_refund", content_type=shop)


def create(**charge):
    done.append(("stripe", charge))


stripe = SimpleNamespace(Charge=SimpleNamespace(create=create))


def print_label(order_id, express):
    return "a label"


def send_mail(order_id, receipt, label):
    done.append(("mail", label))


def book(order_id):
    done.append(("book", order_id))


def total_of(order):
    return 10


def ask_for_payment(order_id):
    done.append(("ask", order_id))


def send_reminder(order_id):
    done.append(("remind", order_id))


def ship(order_id, payment):
    done.append(("ship", payment))


def refund(order_id, by):
    done.append(("refund", by))


def check(page):
    Order.objects.bulk_create([Order(), Order(), Order(shop=2)])
    (question,) = Approval.objects.all()
    shop.delete()  # with its permission, which the end of a test removes
    assert question.question == "Refund 100 to Ada?"
    question.decide(get_user_model().objects.create_superuser("boss"), approved=True)
    fulfilled, recalculated = page.fulfil.enqueue(order_id), page.recalculate.enqueue(1)
    delivered = page.deliver.enqueue(order_id)
    work()
    delivered.refresh()
    assert delivered.data.waits_for == "paid:42"
    page.webhook(None)
    work()
    for job in (*page.parts, fulfilled, recalculated, delivered):
        job.wait(timeout=10)
    assert list(Order.objects.order_by("pk").values_list("total", flat=True)) == [10, 10, 0]
    names = [name for name, _ in done]
    assert sorted(names) == ["ask", "book", "mail", "refund", "ship", "stripe"]
