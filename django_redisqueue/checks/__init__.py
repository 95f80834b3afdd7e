"""System checks, under the tag ``redisqueue``; those that need the network are deploy checks.

manage.py check --tag redisqueue --deploy
"""

from __future__ import annotations

from .local import check_settings
from .network import check_network, run_network_checks

__all__ = ["check_network", "check_settings", "run_network_checks"]
