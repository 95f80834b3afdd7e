"""Injects faults by plan: one after another, or several plans side by side."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event, Lock

from tests.worker.processes import eventually

from . import ledger
from .deployment import Deployment
from .faults import CHILDREN, CLOCK, DATABASE, NETWORK, SERVERS, WORKERS, Faults
from .ledger import Tail
from .plan import GAPS, PlannedFault, make_plan

EVERY = 50  # faults between two progress messages
RECOVERY = 60.0  # s after a fault within which a job must have started and ended
LONGEST_LEASE = 6.0  # s; limits the gaps between faults, so that longer leases do not stretch them
SIDES = {
    "children": CHILDREN, "workers": WORKERS, "servers": SERVERS, "network": NETWORK,
    "database": DATABASE, "clock": CLOCK,
}  # fmt: skip
STALLING = (0.3, 1.0)  # leases: nothing runs during these faults, and jobs need time in between
# After a jump, nothing is reaped for a lease.
SIDE_GAPS = {"servers": STALLING, "network": STALLING, "clock": (0.5, 4.0)}


@dataclass(frozen=True, slots=True)
class Length:
    """A run ends after this many seconds, but never before a whole round; or after this many
    rounds."""

    seconds: float = 0.0
    rounds: int = 0


def plans(
    seed: int, faults: Sequence[str], *, side_by_side: bool
) -> dict[str, Iterator[PlannedFault]]:
    """One plan with all faults; or one for each part of the deployment that any of them affects."""
    if not side_by_side:
        return {"": make_plan(seed, faults)}
    parts = {side: [name for name in faults if name in of] for side, of in SIDES.items()}
    return {
        side: make_plan(f"{seed}-{side}", part, SIDE_GAPS.get(side, GAPS))
        for side, part in parts.items()
        if part
    }


class FaultRunner:
    """``run`` carries out plans side by side. ``fired`` counts the faults that took effect."""

    def __init__(
        self,
        deployment: Deployment,
        tail: Tail,
        say: Callable[[str], None],
        logs: Callable[[], str],
    ) -> None:
        self.fired: Counter[str] = Counter()
        self._faults = Faults(deployment, tail)
        self._longest_gap = min(deployment.place.lease, LONGEST_LEASE)
        self._tail = tail
        self._say = say
        self._logs = logs
        self._stop = Event()
        self._counting = Lock()

    def run(self, plans: Sequence[Iterator[PlannedFault]], length: Length) -> None:
        """Raises the first error of any plan."""
        with ThreadPoolExecutor(len(plans)) as pool:
            running = [pool.submit(self._carry_out, plan, length) for plan in plans]
            try:
                done = wait(running, return_when=FIRST_EXCEPTION).done
            finally:
                self._stop.set()
        for future in (*done, *running):
            future.result()

    def _carry_out(self, plan: Iterator[PlannedFault], length: Length) -> None:
        end = time.monotonic() + length.seconds
        for planned in plan:
            if planned.round > max(1, length.rounds) and time.monotonic() > end:
                return
            if self._stop.wait(planned.gap * self._longest_gap):
                return
            self._inject(planned)

    def _inject(self, planned: PlannedFault) -> None:
        begun = time.time_ns()
        pids = self._faults.inject(planned)
        ledger.write("fault", fault=planned.fault, begun=begun, pids=pids)
        healed = time.time_ns()
        self._count(planned)

        def has_recovered() -> bool:
            self._tail.poll()
            return self._tail.newest > healed

        eventually(
            has_recovered,
            RECOVERY,
            every=0.02,
            why=lambda: f"no job ran after {planned}\n{self._logs()}",
        )

    def _count(self, planned: PlannedFault) -> None:
        with self._counting:
            self.fired[planned.fault] += 1
            total = self.fired.total()
        if total % EVERY == 0:
            self._say(f"{total} faults, {self._tail.ended} runs ended")
