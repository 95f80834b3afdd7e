"""What a careful site adds to every answer."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse


def strict_csp(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Allows only the site's own files: no inline script, no inline style."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    return middleware
