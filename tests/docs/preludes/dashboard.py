from django.contrib.admin import AdminSite

from django_redisqueue.models import Dashboard, JobRecord

site = AdminSite()


def check(page):
    assert site.is_registered(JobRecord)
    assert site.is_registered(Dashboard)
