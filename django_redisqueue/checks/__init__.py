"""System checks with the tag ``redisqueue``, listed in docs/checks.md. Those that need Redis or the
database are deploy checks.

manage.py check --tag redisqueue --deploy
"""

from __future__ import annotations

from .local import check_database, check_settings, check_urls
from .network import check_network

__all__ = ["check_database", "check_network", "check_settings", "check_urls"]
