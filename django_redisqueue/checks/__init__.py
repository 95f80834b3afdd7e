"""System checks with the tag ``redisqueue``, listed in docs/checks.md. Those that need Redis or the
database are deploy checks.

manage.py check --tag redisqueue --deploy
"""

from __future__ import annotations

from .database import check_database
from .local import check_settings
from .network import check_network, run_network_checks

__all__ = ["check_database", "check_network", "check_settings", "run_network_checks"]
