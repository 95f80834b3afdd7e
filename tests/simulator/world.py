"""The simulated world: shards, and the steps of a history in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .history import Step
from .keyspace import Dump, SimulatedBroker
from .shard import Shard
from .verbs import VERBS, Idle


class World:
    """The world of one history, with as many shards as the history uses."""

    def __init__(self, brokers: Sequence[SimulatedBroker]) -> None:
        brokers[0].raw.flushdb()
        self.shards = [Shard(broker) for broker in brokers]
        self._read = brokers[0].dump_all
        self._dump: Dump = {}
        self.check()

    def run(self, steps: Sequence[Step], tell: Callable[[str], object] = lambda _: None) -> None:
        """Carry out the steps, and check the laws after each. A broken law's exception
        propagates."""
        for step in steps:
            told: list[str] = []
            try:
                self._do(step, told)
            finally:
                tell(f"{step}  # {'; '.join(told)}" if told else str(step))
            if not all(isinstance(one, Idle) for one in told):
                self.check(step)

    def _do(self, step: Step, told: list[str]) -> None:
        verb = VERBS[step.verb]
        for shard in self.shards if verb.everywhere else [self.shards[step.shard]]:
            told.append(verb.act(shard, step))

    def check(self, step: Step | None = None) -> None:
        """Check the laws in each shard that has changed. A step may only change its own shard."""
        dump = self._read()
        if dump == self._dump:
            return
        self._dump = dump
        parts = [_part(dump, shard) for shard in self.shards]
        assert sum(map(len, parts)) == len(dump), "a key is in no shard"
        for n, (shard, after) in enumerate(zip(self.shards, parts, strict=True)):
            if after != shard.dump:
                is_meant = step is None or VERBS[step.verb].everywhere or n == step.shard
                assert is_meant, f"a step in shard {step and step.shard} changed shard {n}"
                shard.check(after, has_rewound=step is not None and step.verb == "rewind")


def _part(dump: Dump, shard: Shard) -> Dump:
    base = shard.broker.keys.base
    return {key: found for key, found in dump.items() if key.startswith(base)}
