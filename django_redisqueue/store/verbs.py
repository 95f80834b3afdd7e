"""What all verbs share."""

from __future__ import annotations

from typing import Any

from ..conf import Settings, get_settings
from ..keys import Keys
from ..link import Link, Wait
from .scripts import load

BATCH = 100  # jobs a call at the most (law 11)


class Verbs:
    """How a verb is called: its script, the shard's key, and what every script is told."""

    def __init__(self, link: Link, settings: Settings | None = None) -> None:
        self.link = link
        self.settings = settings or get_settings()
        self.keys = Keys(self.settings.prefix)
        self.now_ms: int | None = None
        self._meta = self.keys.meta
        self._channel = self.keys.status_channel
        replicas = self.settings.wait_replicas
        self.wait = Wait(replicas, self._meta) if replicas else None

    def _head(self, verb: str) -> tuple[Any, ...]:
        """Script, key and the arguments that every verb has (context.lua)."""
        script, now = load(verb), "" if self.now_ms is None else self.now_ms
        return (
            script.sha, script.source, self._meta, now, self._channel, self.settings.events_cap,
        )  # fmt: skip

    def _run(self, verb: str, *args: Any) -> Any:
        return self.link.script(*self._head(verb), *args)

    def _accept(self, call: tuple[Any, ...]) -> Any:
        """Make the call of a script that takes in what is new: as ``_run``, and only once
        ``WAIT_REPLICAS`` replicas have it. Raises NotReplicated."""
        if self.wait is None:
            return self.link.script(*call)
        return self.link.script_on_replicas(self.wait, *call)
