"""The HTTP API: plain JSON views, ``path("jobs", include("django_redisqueue.api.urls"))``."""
