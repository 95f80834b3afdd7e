from __future__ import annotations

from catalogues import views
from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", views.front, name="front"),
    path("progress/<str:job_id>", views.progress, name="progress"),
    path("reports/", include("reports.urls")),
    path("admin/", admin.site.urls),
    path("jobs", include("django_redisqueue.api.urls")),
]
