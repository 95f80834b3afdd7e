import pytest
from django.core.management import call_command
from django.db import transaction
from django.http import HttpResponse
from django.test import TestCase
from django.test.runner import DiscoverRunner
from django.urls import path

from django_redisqueue import task


@task
def send_receipt(order_id): ...


@transaction.atomic
def checkout(request):
    send_receipt.enqueue(7)
    return HttpResponse()


urlpatterns = [path("checkout/", checkout)]
