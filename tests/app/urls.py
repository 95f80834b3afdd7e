"""The site of the test suite."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("jobs", include("django_redisqueue.api.urls")),
]
