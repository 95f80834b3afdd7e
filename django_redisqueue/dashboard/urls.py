"""The addresses of the dashboard, below those of ``JobRecordAdmin``."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import ModelAdmin
from django.urls import URLPattern

from .actions import act_on_list, pause
from .flowactions import act_on_flow
from .flowlist import flow_list
from .flowpage import flow_page, flow_stream
from .jobpage import act_on_job, job_page
from .overview import charts, live, overview, stream
from .pages import route
from .queuepage import queue_page


def dashboard_urls(admin: ModelAdmin[Any]) -> list[URLPattern]:
    return [
        route(admin, "dashboard/", overview, "overview"),
        route(admin, "dashboard/live/", live, "overview_live"),
        route(admin, "dashboard/stream/", stream, "overview_stream"),
        route(admin, "dashboard/charts/", charts, "overview_charts"),
        route(admin, "queues/<str:queue>/pause/", pause, "pause"),
        route(admin, "queues/<str:queue>/<str:status>/", queue_page, "queue"),
        route(admin, "queues/<str:queue>/<str:status>/act/", act_on_list, "act_on_list"),
        route(admin, "workflows/", flow_list, "workflows"),
        route(admin, "workflows/<str:flow_id>/", flow_page, "workflow"),
        route(admin, "workflows/<str:flow_id>/stream/", flow_stream, "workflow_stream"),
        route(admin, "workflows/<str:flow_id>/act/", act_on_flow, "act_on_workflow"),
        route(admin, "jobs/<str:job_id>/", job_page, "job"),
        route(admin, "jobs/<str:job_id>/act/", act_on_job, "act_on_job"),
    ]
