"""Gathers started by hand, for the tests of their verbs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_redisqueue.broker.replies import ClaimedJob, FinishCode
from django_redisqueue.broker.workflows import GatherQueries
from django_redisqueue.core.records import GatherData, GatherListener, GatherPlan

from .harness import ERROR, PAYLOAD, BrokerHarness, outcome

TTL_MS, DELAY_MS, KEEP_MS, POLLS = 600_000, 60_000, 3_600_000, 3


class Query:
    """A gather of listeners ``a``, ``b``, ...; its jobs are no-ops of one queue."""

    def __init__(
        self,
        broker: BrokerHarness,
        listeners: Sequence[str] = "abc",
        *,
        key: str = "key-1",
        name: str = "0",
        threshold: int | None = None,
        failure: bool = True,
        **job: Any,
    ) -> None:
        self.broker = broker
        self.key = key
        self.id = f"gather_{name}_0"
        self.queries = GatherQueries(broker.connection)
        fields = {
            "threshold": threshold or len(listeners), "ttl_ms": TTL_MS,
            "keep_ms": KEEP_MS, "polls": POLLS, "poll_delay_ms": DELAY_MS,
        }  # fmt: skip
        for which in ["then", "failure"] if failure else ["then"]:
            follow = {"task": f"app.{which}", "payload": '[[],{"x":1}]', "queue": "default"}
            follow |= {"options": "", "priority": "0", "audit": "", "when": "", **job}
            fields |= {f"{which}_{part}": value for part, value in follow.items()}
        self.plan = GatherPlan(
            key, self.id, TTL_MS, DELAY_MS, PAYLOAD,
            [str(part) for pair in fields.items() for part in pair],
            [GatherListener(one, "default", f"app.{one}", "", 0, "") for one in listeners],
        )  # fmt: skip

    def start(self) -> int:
        return self.broker.store.start_gather(self.plan)

    def job(self, name: int | str) -> str:
        return f"{self.id}.{name}"

    # -- running

    def take(self, child: str = "runner") -> ClaimedJob:
        return self.broker.take(child)

    def finish(self, job: ClaimedJob, kind: str = "completed", body: str = '"ok"') -> FinishCode:
        body = ERROR if kind in ("failed", "retrying") else body
        (code,) = self.broker.finish(outcome(job, kind, body), child="runner")
        return code

    def run_one(self, kind: str = "completed", body: str = '"ok"') -> str:
        """Claim and finish the next job; returns its name."""
        job = self.take()
        assert self.finish(job, kind, body) == 1
        return job.id.removeprefix(f"{self.id}.")

    def look(self) -> None:
        """Do what the timer does."""
        for _ in range(100):
            next_ms = self.broker.store.promote(["default"]).next_ms
            if next_ms != 0:
                return
            for _ in self.broker.advancing():
                pass
        raise AssertionError("it never comes to an end")

    # -- looking

    def hashes(self, dump: dict[str, Any]) -> list[Any]:
        """The hashes of the gather and its jobs, in a dump of all keys."""
        jobs = [self.job(n) for n in (*range(len(self.plan.listeners)), "then", "failure")]
        keys = self.broker.keys
        names = [keys.gather(self.key), keys.gather_plan(self.key), *map(keys.job, jobs)]
        return [dump.get(name) for name in names]

    def data(self) -> GatherData:
        found = self.queries.gather(self.key)
        assert found is not None
        return found

    def state(self) -> tuple[str, str]:
        data = self.data()
        return data.status.value, data.reason.value

    def check_results(self, dump: dict[str, Any]) -> None:
        """The results contain those of all completed listeners, and their count."""
        nothing: tuple[str, dict[str, str]] = ("hash", {})
        results = dict(dump.get(self.broker.keys.gather(self.key), nothing)[1])
        count = int(results.pop("queryDoneCount", 0))
        if results:
            for n, one in enumerate(self.plan.listeners):
                job = dump.get(self.broker.keys.job(self.job(n)), nothing)[1]
                assert job.get("status") != "completed" or one.name in results
            assert count == len(results)

    def ttl_ms(self) -> int:
        """The TTL of the results: -1 none, -2 they are gone."""
        return self.broker.redis.pttl(self.broker.keys.gather(self.key))  # type: ignore[return-value]

    def expire(self) -> None:
        """Act as if the TTL of the results had passed."""
        assert self.broker.redis.delete(self.broker.keys.gather(self.key)) == 1

    @property
    def is_known(self) -> bool:
        return bool(self.broker.redis.exists(self.broker.keys.gather_plan(self.key)))
