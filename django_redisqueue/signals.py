"""Django signals of the package."""

from __future__ import annotations

from django.dispatch import Signal

#: Sent in every child process after the fork, before its first job; ``sender`` is the child's
#: class, ``child`` its id. Telemetry and connection pools re-initialise here.
child_started = Signal()

#: Sent in a child before it ends in order (not when it is killed); ``child`` is its id.
child_stopping = Signal()
