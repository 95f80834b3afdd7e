"""Shortens the time after which a busy child makes room for a suspect job."""

from __future__ import annotations

from django_redisqueue.worker.child import idle
from tests.support.constants import replace

replace(idle, SUSPECT_WAIT=0.2, FIRST_PAUSE=0.2)
