"""Stops the embedded servers that tests started."""

from __future__ import annotations

from pathlib import Path

from django_redisqueue.broker import embedded


def stop_server(folder: Path) -> None:
    """Stop the server of ``folder``, if one runs; afterwards its data is on disk."""
    home = embedded._home(folder)
    socket = embedded._socket_path(home)
    for _ in embedded._polls(10.0):
        embedded._shut_down(socket)
        if not home.exists():
            return
        with embedded._lock(home) as lock:
            if lock is not None:
                return
    raise AssertionError(f"the Redis server of {home} did not stop")
