"""The URLs of the dashboard, below those of ``JobRecordAdmin``."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import ModelAdmin
from django.urls import URLPattern

from .actions import act_on_list, change_filters, pause
from .charts import charts
from .errors import act_on_error, error_list, error_page
from .export import export_queue, export_records
from .gathers_page import gather_list, gather_page
from .job_page import act_on_job, copy_job, job_page
from .overview import live, overview, stream
from .pages import route
from .policies import change_limit, limits, release_key, resume_part, schedules, unique_keys, waits
from .queue_page import queue_page
from .search import search
from .tasks_page import task_page, tasks_page
from .workers_page import order_worker, workers, workers_stream
from .workflows_page import act_on_workflow, workflow_list, workflow_page, workflow_stream


def dashboard_urls(admin: ModelAdmin[Any]) -> list[URLPattern]:
    return [
        route(admin, "dashboard/", overview, "overview"),
        route(admin, "dashboard/live/", live, "overview_live"),
        route(admin, "dashboard/stream/", stream, "overview_stream"),
        route(admin, "dashboard/charts/", charts, "overview_charts"),
        route(admin, "search/", search, "search"),
        route(admin, "filters/", change_filters, "filters"),
        route(admin, "export/", export_records, "export_records"),
        route(admin, "queues/<str:queue>/<str:status>/export/", export_queue, "export_queue"),
        route(admin, "queues/<str:queue>/pause/", pause, "pause"),
        route(admin, "queues/<str:queue>/<str:status>/", queue_page, "queue"),
        route(admin, "queues/<str:queue>/<str:status>/act/", act_on_list, "act_on_list"),
        route(admin, "tasks/", tasks_page, "tasks"),
        route(admin, "tasks/task/", task_page, "task"),
        route(admin, "workers/", workers, "workers"),
        route(admin, "workers/stream/", workers_stream, "workers_stream"),
        route(admin, "workers/order/", order_worker, "order_worker"),
        route(admin, "policies/limits/", limits, "limits"),
        route(admin, "policies/limits/change/", change_limit, "change_limit"),
        route(admin, "policies/limits/resume/", resume_part, "resume_part"),
        route(admin, "policies/unique-keys/", unique_keys, "unique_keys"),
        route(admin, "policies/unique-keys/release/", release_key, "release_key"),
        route(admin, "policies/schedules/", schedules, "schedules"),
        route(admin, "policies/waits/", waits, "waits"),
        route(admin, "errors/", error_list, "errors"),
        route(admin, "errors/<str:group>/", error_page, "error"),
        route(admin, "errors/<str:group>/act/", act_on_error, "act_on_error"),
        route(admin, "gathers/", gather_list, "gathers"),
        route(admin, "gathers/<str:key>/", gather_page, "gather"),
        route(admin, "workflows/", workflow_list, "workflows"),
        route(admin, "workflows/<str:workflow_id>/", workflow_page, "workflow"),
        route(admin, "workflows/<str:workflow_id>/stream/", workflow_stream, "workflow_stream"),
        route(admin, "workflows/<str:workflow_id>/act/", act_on_workflow, "act_on_workflow"),
        route(admin, "jobs/<str:job_id>/", job_page, "job"),
        route(admin, "jobs/<str:job_id>/act/", act_on_job, "act_on_job"),
        route(admin, "jobs/<str:job_id>/copy/", copy_job, "copy_job"),
    ]
