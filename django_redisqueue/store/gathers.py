"""The verbs of gathers, and what is read of them."""

from __future__ import annotations

from typing import Any

from ..gatherdata import GatherData, GatherPlan, decode_gather
from .reader import Reader, pairs
from .verbs import Verbs

DONE_COUNT = "queryDoneCount"
_FILE = "file:"


class GatherVerbs(Verbs):
    """Starting and forgetting gathers."""

    def gather(self, plan: GatherPlan) -> int:
        """Start a gather: 1 started, 0 known already, -1 another has its key. Repeating the call
        changes nothing."""
        arguments: list[Any] = [plan.key, plan.id, plan.ttl_ms, plan.poll_delay_ms, plan.payload]
        arguments += [len(plan.fields) // 2, *plan.fields]
        for listener in plan.listeners:
            arguments += listener
        code: int = self._accept((*self._head("gather"), *arguments))
        return code

    def stow(self, job_id: str, lease: int, name: str) -> int:
        """Note the file that is about to hold a job's result: 1 noted, 0 the lease is lost, -1 its
        gather is over."""
        code: int = self._run("stow", job_id, lease, name)
        return code

    def discard(self, key: str, gather_id: str) -> bool:
        """Forget a gather whose files are deleted; False when it was gone."""
        return bool(self._run("discard", key, gather_id))


class GatherReads(Reader):
    """The reads, on one link."""

    def gather(self, key: str) -> GatherData | None:
        """A gather without its results, or None when no gather has this key."""
        raw, there, done = self.link.pipeline(
            [
                ("HGETALL", self.keys.plan(key)),
                ("HKEYS", self.keys.gather(key)),
                ("HGET", self.keys.gather(key), DONE_COUNT),
            ]
        )
        fields = pairs(raw)
        return decode_gather(key, fields, there, done) if "id" in fields else None

    def results(self, key: str) -> dict[str, str]:
        """The results as JSON text, by listener. Costs as much as they are large."""
        found = pairs(self.link.call("HGETALL", self.keys.gather(key)))
        found.pop(DONE_COUNT, None)
        return found

    def key_of(self, job_id: str) -> str | None:
        """The key of the gather that a job belongs to, or None."""
        found: str | None = self.link.call("HGET", self.keys.job(job_id), "gather")
        return found

    def closed(self, count: int) -> list[str]:
        """Some of the gathers that are over and whose files are to be deleted."""
        found: list[str] = self.link.call("SRANDMEMBER", self.keys.closed_gathers, count)
        return found

    def files(self, key: str) -> tuple[str, list[str]]:
        """A gather's id ('' when it is gone), and the files noted for its results."""
        gather_id, names = self.link.pipeline(
            [("HGET", self.keys.plan(key), "id"), ("HKEYS", self.keys.plan(key))]
        )
        return gather_id or "", [
            name.removeprefix(_FILE) for name in names if name.startswith(_FILE)
        ]
