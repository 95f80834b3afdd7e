"""The front page, which enqueues a job; its script polls ``progress`` to follow the job."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from django_redisqueue import Job, get_job
from django_redisqueue.exceptions import InvalidName, JobNotFound, RedisQueueError

from .coverage import by_language
from .discovery import languages
from .tasks import measure_language

PAGE = "catalogues/front.html"
PACE = 0.15  # seconds per catalogue: the job of a language takes 20 ms, too fast to be watched


@never_cache
@require_http_methods(["GET", "POST"])
def front(request: HttpRequest) -> HttpResponse:
    """Choose a language; POST enqueues its job and returns here to follow it."""
    context: dict[str, Any] = {"languages": languages(), "chosen": "de"}
    if request.method == "POST":
        context["chosen"] = code = request.POST.get("language", "")
        if code not in languages():
            return render(request, PAGE, {**context, "problem": "Choose a language."}, status=400)
        try:
            job = measure_language.enqueue(code, pace=PACE)
        except RedisQueueError as error:
            return render(request, PAGE, {**context, "problem": str(error)}, status=503)
        return redirect(f"{reverse('front')}?job={job.id}")
    try:
        job_id = request.GET.get("job")
        state = _state(get_job(job_id)) if job_id else None
    except (InvalidName, JobNotFound):
        return render(request, PAGE, {**context, "problem": "There is no such job."}, status=404)
    except RedisQueueError as error:
        return render(request, PAGE, {**context, "problem": str(error)}, status=503)
    chosen = state["language"] if state else context["chosen"]
    return render(request, PAGE, {**context, "state": state, "chosen": chosen})


@never_cache
@require_GET
def progress(request: HttpRequest, job_id: str) -> JsonResponse:
    """Return the progress of a job of the front page."""
    try:
        return JsonResponse(_state(get_job(job_id)))
    except (InvalidName, JobNotFound) as error:
        return JsonResponse({"problem": str(error)}, status=404)
    except RedisQueueError as error:
        return JsonResponse({"problem": str(error)}, status=503)


def _state(job: Job) -> dict[str, Any]:
    """What the page shows of a job. Other tasks are hidden, because the page requires no login."""
    if job.task_name != measure_language.name:
        raise JobNotFound(f"job {job.id} does not belong to this page")
    done = job.progress
    return {
        "id": job.id,
        "status": str(job.status),
        "ended": job.status.is_final,
        "language": job.args[0] if job.args else "",
        "done": done.done if done else 0,
        "total": done.total if done else 0,
        "note": done.note if done else "",
        "error": str(job.error) if job.error else "",
        "rows": job.result or [],
        "share": f"{by_language(job.result)[0].share:.1%}" if job.result else "",
    }
