"""Other queues, each in its own environment, measured in turn with this project.

All are driven through the same kind of adapter (``benchmarks/peers``), with and without an
append-only file. They take turns in each case, because the speed of a machine changes from minute
to minute. Recovery is measured for all at the same time, with an append-only file, because it is
mostly waiting.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tests.support.servers import RedisServer

from ..comparison import Comparison, write
from ..environment import Environment, Options
from ..measure import percentile, until
from ..peer import OURS, Note, Peer, PeerFailed, kill, names, prepare, wait_for
from ..processes import Process
from ..report import Row, machine

EVERY = {"noop": 50, "async": 10}  # one in this many jobs of a kind notes the time
JOBS = {"noop": 20_000, "ten_ms": 1500, "async": 10_000, "pickup": 200}
FILL_SECONDS = 2.0
DRAIN_SECONDS = 3.0  # s after the first note
RECOVERY_SECONDS = 90.0
SOON = 3.0  # s in which nothing else starts, so that a quick recovery is measured precisely
PAUSE = 0.01  # s between two jobs of pick-up, in which the worker becomes idle
WARM = 1_000_000  # the number of the first of the jobs that only show whether a worker is ready

Measuring = Callable[[Peer, int | None], dict[str, float]]


def run(environment: Environment, options: Options) -> Iterator[Row]:
    comparison = Comparison()
    here = machine(environment.redis.info("server")["redis_version"])  # its load before the run
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drq-")))
        chosen = list(prepared(comparison, options.peers))
        for _ in range(options.rounds_or(2)):
            for appendonly, measuring in product((True, False), CASES):
                for name in chosen:
                    case(comparison, name, measuring, appendonly, folder, options.jobs)
        recoveries(comparison, chosen, folder)
    if options.write:
        write(comparison, here)
    yield from comparison.rows()


def prepared(comparison: Comparison, chosen: Sequence[str]) -> Iterator[str]:
    """The peers whose environments could be created."""
    unknown = set(chosen) - set(names())
    if unknown:
        raise SystemExit(f"no such peer: {', '.join(sorted(unknown))}; choose from {names()}")
    for name in names():
        if chosen and name not in (*chosen, OURS):
            continue
        try:
            prepare(name)
        except PeerFailed as error:
            comparison.fail(name, str(error))
        else:
            yield name


def case(
    comparison: Comparison,
    name: str,
    measuring: Measuring,
    appendonly: bool,
    folder: Path,
    jobs: int | None,
) -> None:
    """Measure one case. One that fails does not stop the others."""
    say(f"{name}, {measuring.__name__}, append-only {'on' if appendonly else 'off'}")
    with closing(RedisServer(appendonly=appendonly)) as server:
        try:
            with closing(Peer(name, server.url, folder)) as peer:
                comparison.versions[name] = peer.version
                server.client().flushall()  # the job with which it connected
                peer.forget()
                comparison.add(name, appendonly, **measuring(peer, jobs))
        except PeerFailed as error:
            comparison.fail(name, str(error), appendonly, measuring.__name__)


def noop(peer: Peer, jobs: int | None = None) -> dict[str, float]:
    enqueued, drained = drain(peer, "noop", jobs)
    return {"enqueue": enqueued, "noop": drained}


def ten_ms(peer: Peer, jobs: int | None = None) -> dict[str, float]:
    return {"ten_ms": drain(peer, "ten_ms", jobs)[1]}


def at_once(peer: Peer, jobs: int | None = None) -> dict[str, float]:
    return {"at_once": drain(peer, "async", jobs)[1]}


def drain(peer: Peer, kind: str, jobs: int | None = None) -> tuple[float, float]:
    """Jobs per second, first enqueued, and then drained by one worker that starts afterwards."""
    if peer.workers[kind] is None:
        raise PeerFailed("no coroutines")
    filled = peer.fill(kind, min(jobs or JOBS[kind], JOBS[kind]), seconds=FILL_SECONDS)
    every = EVERY.get(kind, 1)
    expected = 1 + (filled.jobs - 1) // every
    with peer.worker(kind) as process:
        wait_for(process, lambda: of_jobs(peer), "no job started")
        end = time.monotonic() + DRAIN_SECONDS
        enough = lambda: len(of_jobs(peer)) >= expected or time.monotonic() > end  # noqa: E731
        wait_for(process, enough, "the worker stopped")
    return filled.rate, rate(of_jobs(peer), every)


def of_jobs(peer: Peer) -> list[Note]:
    """The notes, except that of the job that opened the connection."""
    return [note for note in peer.notes() if note.number >= 0]


def rate(notes: Sequence[Note], every: int) -> float:
    """Jobs per second, without the first tenth, in which the worker and its children start."""
    times = sorted(note.time for note in notes)
    times = times[len(times) // 10 :]
    if len(times) < 2:
        raise PeerFailed("too few jobs")
    return (len(times) - 1) * every / (times[-1] - times[0])


def pickup(peer: Peer, jobs: int | None = None) -> dict[str, float]:
    """Percentiles of the time in ms from the call to the start of the job in an idle worker."""
    jobs = min(jobs or JOBS["pickup"], JOBS["pickup"])
    with peer.worker("pickup") as process:
        warm(peer, [process])
        called = peer.fill("pickup", jobs, pause=PAUSE).called
        wait_for(process, lambda: len(started(peer)) == jobs, "not all jobs started")
    waits = [(note.time - called[note.number]) * 1000 for note in started(peer)]
    return {"pickup_p50": percentile(waits, 0.5), "pickup_p99": percentile(waits, 0.99)}


CASES: Sequence[Measuring] = (noop, ten_ms, at_once, pickup)


def started(peer: Peer) -> list[Note]:
    return [note for note in peer.notes() if 0 <= note.number < WARM]


def warm(peer: Peer, workers: Sequence[Process]) -> None:
    """Enqueue jobs until each worker has run one, and wait until all have started."""
    sent = 0

    def one_more() -> bool:
        nonlocal sent
        if all(any(ran(worker, note) for note in peer.notes()) for worker in workers):
            return True
        peer.fill("pickup", 1, first=WARM + sent)
        sent += 1
        time.sleep(0.1)
        return False

    for worker in workers:
        wait_for(worker, one_more, "a worker ran no job")
    wait_for(workers[0], lambda: len(of_jobs(peer)) >= sent, "not all jobs started")


def ran(worker: Process, note: Note) -> bool:
    return note.session == worker.popen.pid or note.pid in worker.tree()


@dataclass(frozen=True, slots=True)
class Strike:
    """A peer one of whose processes was ended by ``kill -9``, and the time of that."""

    name: str
    measure: str
    peer: Peer
    time: float

    def recovery(self) -> float | None:
        """Seconds until the job started again; None until then."""
        again = started(self.peer)[1:]
        return again[0].time - self.time if again else None


def recoveries(comparison: Comparison, chosen: Sequence[str], folder: Path) -> None:
    with ExitStack() as stack:
        strikes: list[Strike] = []
        for name in chosen:
            for measure in ("worker_killed", "child_killed"):
                say(f"{name}, {measure.replace('_', ' ')}")
                try:
                    strikes.append(strike(stack, name, measure, folder))
                except PeerFailed as error:
                    comparison.fail(name, str(error), True, measure)
        for one in strikes:
            left = one.time + RECOVERY_SECONDS - time.time()
            if wait(one, left):
                comparison.add(one.name, True, **{one.measure: one.recovery() or 0.0})
            else:
                text = f"not within {RECOVERY_SECONDS:g} s"
                comparison.fail(one.name, text, True, one.measure)


def strike(stack: ExitStack, name: str, measure: str, folder: Path) -> Strike:
    """Start two workers and a long job, and kill what runs it: the whole worker, or its child."""
    server = RedisServer(appendonly=True)
    stack.callback(server.close)
    (folder / measure).mkdir(exist_ok=True)
    peer = Peer(name, server.url, folder / measure)
    stack.callback(peer.close)
    workers = [stack.enter_context(peer.worker("long", f"worker-{n}")) for n in (1, 2)]
    warm(peer, workers)
    peer.fill("long", 1)
    wait_for(workers[0], lambda: started(peer), "the long job did not start")
    note = started(peer)[0]
    hit = next(one for one in workers if ran(one, note))
    if measure == "child_killed" and note.pid == hit.popen.pid:
        raise PeerFailed("no child processes")
    struck = Strike(name, measure, peer, time.time())
    if measure == "worker_killed":
        kill(hit)
    else:
        os.kill(note.pid, signal.SIGKILL)
    wait(struck, SOON)
    return struck


def wait(struck: Strike, seconds: float) -> bool:
    """Whether the job started again within these seconds."""
    try:
        until(lambda: struck.recovery() is not None, "recovery", max(seconds, 0))
    except TimeoutError:
        return False
    return True


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
