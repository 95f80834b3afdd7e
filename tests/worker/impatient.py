"""Imported by a worker among its tasks: its children soon make room for a suspect job."""

from __future__ import annotations

from django_redisqueue.worker import idle

idle.SUSPECT_PATIENCE = idle.FIRST_PAUSE = 0.2
