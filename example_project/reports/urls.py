from __future__ import annotations

from django.urls import path

from . import views

app_name = "reports"
urlpatterns = [
    path("", views.reports, name="list"),
    path("states", views.states, name="states"),
    path("<uuid:record_id>.csv", views.download, name="download"),
]
