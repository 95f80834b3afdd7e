"""The pages of reports, for a test client."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path


def front(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [
    path("", front, name="front"),
    path("reports/", include("example_project.reports.urls")),
    path("admin/", admin.site.urls),
]
