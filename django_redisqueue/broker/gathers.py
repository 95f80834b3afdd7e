"""Commands and queries of gathers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from ..core.parsing import pairs
from ..core.records import GatherData, GatherListener, GatherPlan, decode_gather
from ..exceptions import CorruptJob
from .base import CommandBase, QueryBase
from .reads import Read, Strict, query, together

DONE_COUNT = "queryDoneCount"
_FILE = "file:"
_OUTLINE = (
    "id", "status", "reason", "threshold", "listeners", "missing", "polls", "made_ms", "ended_ms",
)  # fmt: skip


class GatherCommands(CommandBase):
    """Commands that start and delete gathers."""

    def start_gather(self, plan: GatherPlan) -> int:
        """Start a gather: 1 started, 0 known already, -1 another has its key. Repeating the call
        changes nothing."""
        arguments: list[Any] = [plan.key, plan.id, plan.ttl_ms, plan.poll_delay_ms, plan.payload]
        arguments += [len(plan.fields) // 2, *plan.fields]
        for listener in plan.listeners:
            arguments += GatherListener(*listener)
        return self._accept((*self._head("start_gather"), *arguments))

    def delete_gather(self, key: str, gather_id: str) -> bool:
        """Forget a gather whose files are deleted; False when it was gone."""
        return bool(self._run("delete_gather", key, gather_id))


class GatherQueries(QueryBase):
    """Queries, on one connection."""

    @query
    def gather(self, key: str) -> Read[GatherData | None]:
        """A gather without its results, or None when no gather has this key."""
        raw, there, done = yield Strict(
            [
                ("HGETALL", self.keys.gather_plan(key)),
                ("HKEYS", self.keys.gather(key)),
                ("HGET", self.keys.gather(key), DONE_COUNT),
            ]
        )
        fields = pairs(raw)
        return decode_gather(key, fields, there, done) if "id" in fields else None

    @query
    def newest(self, count: int) -> Read[list[tuple[str, float]]]:
        """The keys of the gathers that were started last, the last one first, with the instants."""
        (found,) = yield Strict(
            [("ZREVRANGE", self.keys.newest_gathers, 0, count - 1, "WITHSCORES")]
        )
        return [(key, float(at)) for key, at in pairs(found).items()]

    @query
    def matching(self, text: str, count: int) -> Read[list[tuple[str, float]]]:
        """The keys among the ``count`` newest that contain ``text``, with the instants of their
        starts; and the key ``text`` itself, with an infinite instant."""
        known, newest = yield Strict(
            [
                ("HEXISTS", self.keys.gather_plan(text), "id"),
                ("ZREVRANGE", self.keys.newest_gathers, 0, count - 1, "WITHSCORES"),
            ]
        )
        part, exact = text.casefold(), {text: inf} if known else {}
        found = {key: float(at) for key, at in pairs(newest).items() if part in key.casefold()}
        return list({**found, **exact}.items())

    @query
    def statuses(self, keys: Sequence[str]) -> Read[list[str | None]]:
        """The statuses; None for a gather that is gone. One round trip."""
        found = yield [("HGET", self.keys.gather_plan(key), "status") for key in keys]
        return list(found)

    @query
    def outlines(self, keys: Sequence[str]) -> Read[dict[str, GatherData | CorruptJob]]:
        """Several gathers without their payloads, in one round trip. Leaves out those that are
        gone."""
        found = yield from together(map(self._outline, keys))
        return {key: one for key, one in zip(keys, found, strict=True) if one is not None}

    def _outline(self, key: str) -> Read[GatherData | CorruptJob | None]:
        plan, results = self.keys.gather_plan(key), self.keys.gather(key)
        raw, there, done = yield [
            ("HMGET", plan, *_OUTLINE), ("HKEYS", results), ("HGET", results, DONE_COUNT),
        ]  # fmt: skip
        fields = zip(_OUTLINE, raw or (), strict=False)
        known = {name: value for name, value in fields if value is not None}
        if not known:
            return None
        try:
            return decode_gather(key, {**known, "payload": "[[],{}]"}, there or (), done)
        except CorruptJob as error:
            return error

    def results(self, key: str) -> dict[str, str]:
        """The results as JSON, by listener. The cost grows with their size."""
        found = pairs(self.connection.call("HGETALL", self.keys.gather(key)))
        found.pop(DONE_COUNT, None)
        return found

    def key_of(self, job_id: str) -> str | None:
        """The key of the gather that a job belongs to, or None."""
        return self.connection.call("HGET", self.keys.job(job_id), "gather")

    def key_of_run(self, job_id: str) -> str | None:
        """``key_of`` for a job that runs. Raises LeaseLost if Redis knows nothing of that."""
        key, status = self.connection.call("HMGET", self.keys.job(job_id), "gather", "status")
        self._check_runs(job_id, status)
        return key

    def closed(self, count: int) -> list[str]:
        """Some of the ended gathers whose files are to be deleted."""
        return self.connection.call("SRANDMEMBER", self.keys.closed_gathers, count)

    def files(self, key: str) -> tuple[str, list[str]]:
        """A gather's id ('' if it is gone), and the files recorded for its results."""
        gather_id, names = self.connection.pipeline(
            [("HGET", self.keys.gather_plan(key), "id"), ("HKEYS", self.keys.gather_plan(key))]
        )
        return gather_id or "", [
            name.removeprefix(_FILE) for name in names if name.startswith(_FILE)
        ]
