"""Shortens the time after which a task of maintenance hangs.

The watchdog is as patient as ever: on a busy machine it would replace processes that only wait for
a core.
"""

from __future__ import annotations

from django_redisqueue.worker.maintenance import maintenance, periodic
from tests.support.constants import replace

replace(periodic, HUNG_AFTER=1.0)
replace(maintenance, RENEW=1.0)
