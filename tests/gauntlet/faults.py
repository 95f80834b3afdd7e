"""The faults. Each is a method that injects the fault, makes sure that it took effect, lets it
last, and repairs it. It returns the processes that it stopped or killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import TypeVar

import psutil
from redis import Redis
from redis.exceptions import RedisError

from django_redisqueue.broker.keys import Keys
from django_redisqueue.core.ids import slot, tag
from tests.support.cluster import ClusterNodes, can_be_cut_off
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.sentinels import Fleet
from tests.support.servers import RedisServer
from tests.worker.processes import eventually, is_alive

from . import ledger
from .deployment import Deployment, Place, Producer, Worker
from .ledger import Tail
from .plan import PlannedFault

BRIEF = (0.3, 2.0)  # s
SLOW_MS = (5.0, 80.0)  # in each direction
FULL = "OutOfMemory"
UNREPORTED = "Redis does not answer; unreported jobs are recovered when their leases lapse"
SHORTEST_JUMP = 0.2  # s
HOUR = 3600.0  # s

# Which faults may overlap. Within one of these groups, they happen one after another.
CHILDREN = ("job_child_killed", "helper_killed", "child_frozen")
WORKERS = (
    "supervisor_killed", "machine_died", "supervisor_frozen", "worker_frozen", "deployed",
    "bridge_killed", "producer_killed",
)  # fmt: skip
ONE_REDIS = ("redis_killed", "redis_restarted", "redis_frozen", "save_failing")
SENTINEL = (
    "master_killed", "master_frozen", "failed_over", "replica_killed", "sentinel_killed",
)  # fmt: skip
CLUSTER = ("owner_killed", "owner_cut_off", "owner_failed_over", "slot_moved")
SERVERS = ("memory_full", *ONE_REDIS, *SENTINEL, *CLUSTER)
NETWORK = ("replies_dropped", "replies_delayed", "connections_cut", "partitioned")
DATABASE = ("database_crashed", "database_cut")
CLOCK = ("clock_jumped", "worker_clock_jumped", "producer_clock_jumped")

ANYWHERE = (*CHILDREN, *WORKERS, "memory_full")
ON = {
    "redis": (*ONE_REDIS, *NETWORK), "sentinel": SENTINEL, "cluster": CLUSTER,
    "postgresql": DATABASE, "sqlite": (),
}  # fmt: skip

Pids = list[int]
Found = TypeVar("Found")


class UnknownFault(ValueError):
    """A fault was requested that cannot be injected in this place."""


def choose(place: Place, only: str = "") -> list[str]:
    """The names of the faults that can be injected in a place, or those given, separated by commas.
    Raises UnknownFault."""
    clock = CLOCK if place.clock_jumps else ()
    there = sorted((*ANYWHERE, *ON[place.on], *ON[place.database], *clock))
    if place.on == "cluster" and not can_be_cut_off():
        there.remove("owner_cut_off")
    chosen = sorted(set(only.split(","))) if only else there
    unknown = [name for name in chosen if name not in there]
    if unknown:
        raise UnknownFault(
            f"there is no fault {', '.join(unknown)} here; there are: {', '.join(there)}"
        )
    return chosen


class Faults:
    """Each method gets its planned fault: ``pick`` chooses the victim and ``share`` the length.
    Faults in different parts of the deployment may overlap: if a victim is gone, another one is
    chosen, and what cannot be observed while Redis is down is observed later."""

    def __init__(self, deployment: Deployment, tail: Tail) -> None:
        self._deployment = deployment
        self._tail = tail
        lease = deployment.place.lease
        self._up_to_a_lapse = (0.3, 1.5 * lease)
        self._lapse = (1.3 * lease, 2.0 * lease)
        self._furthest_jump = 3 * lease  # s
        self._signalling = Lock()

    def inject(self, planned: PlannedFault) -> Pids:
        """Inject the planned fault."""
        fault: Callable[[PlannedFault], Pids] = getattr(self, planned.fault)
        return fault(planned)

    # -- workers

    def job_child_killed(self, planned: PlannedFault) -> Pids:
        """SIGKILL a process that runs jobs."""
        return self._kill_child(planned, of_jobs=True)

    def helper_killed(self, planned: PlannedFault) -> Pids:
        """SIGKILL a process that runs no jobs: maintenance, or the bridge of a worker."""
        return self._kill_child(planned, of_jobs=False)

    def supervisor_killed(self, planned: PlannedFault) -> Pids:
        """SIGKILL a supervisor; its children end with it. The next worker of the same name takes
        over."""
        return self._replace(planned, same_name=True)

    def machine_died(self, planned: PlannedFault) -> Pids:
        """SIGKILL a worker with all its processes; its jobs return when their leases expire."""
        return self._replace(planned, same_name=False)

    def child_frozen(self, planned: PlannedFault) -> Pids:
        """SIGSTOP one process of a worker, for up to more than a lease."""

        def freeze() -> Pids:
            return self._freeze(
                [self._pick(planned, self._children())], self._up_to_a_lapse, planned
            )

        return eventually(freeze)

    def supervisor_frozen(self, planned: PlannedFault) -> Pids:
        """SIGSTOP a supervisor: its children keep running while their leases expire."""
        worker = self._worker(planned)
        self._freeze([worker.pid], self._lapse, planned)
        return [worker.pid, *worker.children]

    def worker_frozen(self, planned: PlannedFault) -> Pids:
        """SIGSTOP all processes of a worker, for longer than its leases."""
        worker = self._worker(planned)
        pids = [worker.pid, *(process.pid for process in worker.tree())]
        return self._freeze(pids, self._lapse, planned)

    def deployed(self, planned: PlannedFault) -> Pids:
        """SIGTERM a worker, and start its successor at the same time."""
        at, workers = self._at(planned), self._deployment.workers
        former, workers[at] = workers[at], self._deployment.start_worker()
        eventually(lambda: former.children)  # it may have only just started
        pids = [former.pid, *former.children]
        former.term()
        code = former.wait(60)
        # If this overlapped with other faults, Redis might be down for longer than a worker waits
        # to report.
        is_cut_off = code == 1 and UNREPORTED in former.output
        assert code == 0 or is_cut_off, f"a worker that stopped ended with {code}\n{former.output}"
        return pids

    def bridge_killed(self, planned: PlannedFault) -> Pids:
        """SIGKILL ``bridgeevents``, and start it again."""
        former = self._deployment.bridge
        former.kill()
        self._deployment.bridge = self._deployment.start_bridge()
        return [former.pid]

    def producer_killed(self, planned: PlannedFault) -> Pids:
        """SIGKILL a producer, and start another."""
        return [self._pick(planned, self._deployment.producers).kill()]

    # -- one Redis

    def redis_killed(self, planned: PlannedFault) -> Pids:
        """SIGKILL Redis, and start it again."""
        server = self._server(planned)
        server.kill()
        self._wait_out(BRIEF, planned)
        server.start()
        return []

    def redis_restarted(self, planned: PlannedFault) -> Pids:
        """SIGTERM Redis, and start it again."""
        self._server(planned).restart()
        return []

    def redis_frozen(self, planned: PlannedFault) -> Pids:
        """SIGSTOP Redis: connections stay open, and nothing is answered."""
        return self._freeze([self._server(planned).pid], self._up_to_a_lapse, planned)[:0]

    def memory_full(self, planned: PlannedFault) -> Pids:
        """Redis has reached maxmemory, and refuses commands that need memory."""
        keys = self._keys(planned)
        with self._deployment.server(keys.shard).client() as client:
            client.config_set("maxmemory", 1)
            eventually(lambda: FULL in refusal(client, keys))
            self._wait_out(BRIEF, planned)
            client.config_set("maxmemory", 0)
            eventually(lambda: not refusal(client, keys))
        return []

    def save_failing(self, planned: PlannedFault) -> Pids:
        """Redis cannot write its snapshot, as on a full disk, and refuses every write."""
        with self._server(planned).save_failing():
            self._wait_out(BRIEF, planned)
        return []

    # -- the network

    def replies_dropped(self, planned: PlannedFault) -> Pids:
        """Redis executes the next calls, but their replies are lost."""
        proxy = self._proxy(planned)
        before = proxy.dropped
        proxy.drop_replies(1 + round(9 * planned.share), matching=b"EVALSHA")
        eventually(lambda: proxy.dropped > before)
        return []

    def replies_delayed(self, planned: PlannedFault) -> Pids:
        """A slow network."""
        proxy = self._proxy(planned)
        low, high = SLOW_MS
        proxy.delay_ms = low + (high - low) * planned.share
        time.sleep(BRIEF[1])  # the length of the fault
        with Redis.from_url(self._url(planned)) as client:
            client_id(client)  # connects

            def is_slow() -> bool:
                begun, number = time.monotonic(), client_id(client)
                return number > 0 and time.monotonic() - begun > 2 * proxy.delay_ms / 1000

            eventually(is_slow)
        proxy.delay_ms = 0
        return []

    def connections_cut(self, planned: PlannedFault) -> Pids:
        """All connections to Redis are closed at once."""
        eventually(self._proxy(planned).cut)
        return []

    def partitioned(self, planned: PlannedFault) -> Pids:
        """Connections stay open, and nothing passes through them."""
        proxy = self._proxy(planned)
        proxy.black_hole()
        with Redis.from_url(self._url(planned), socket_timeout=0.2) as client:
            eventually(self._server(planned).answers)
            assert not client_id(client), "something has passed"
        self._wait_out(self._up_to_a_lapse, planned)
        proxy.black_hole(False)
        return []

    # -- Sentinel

    def master_killed(self, planned: PlannedFault) -> Pids:
        """SIGKILL the master, wait for the promotion, and start it again."""
        return self._change_master(RedisServer.kill, RedisServer.start)

    def master_frozen(self, planned: PlannedFault) -> Pids:
        """SIGSTOP the master until a replica is promoted: then it resumes with its old data."""
        return self._change_master(RedisServer.pause, RedisServer.resume)

    def failed_over(self, planned: PlannedFault) -> Pids:
        """SENTINEL FAILOVER, as an operator asks for it."""
        return self._change_master(lambda _: self._fleet.fail_over(), lambda _: None)

    def replica_killed(self, planned: PlannedFault) -> Pids:
        """SIGKILL a replica, and start it again."""
        master = self._fleet.master
        replica = self._pick(planned, [one for one in self._fleet.servers if one is not master])
        replica.kill()
        self._wait_out(BRIEF, planned)
        replica.start()
        replica.follow(master)
        return []

    def sentinel_killed(self, planned: PlannedFault) -> Pids:
        """SIGKILL a sentinel, and start it again."""
        sentinel = self._pick(planned, self._fleet.sentinels)
        sentinel.end(signal.SIGKILL)
        self._wait_out(BRIEF, planned)
        sentinel.start()
        return []

    # -- Redis Cluster

    def owner_killed(self, planned: PlannedFault) -> Pids:
        """SIGKILL a master that holds jobs, have its replica take over, and start it again."""
        number = self._slot(planned)
        former = self._cluster.owner(number)
        self._cluster.kill_owner(number)
        self._wait_out(BRIEF, planned)
        former.start()
        self._cluster.wait_until_whole()
        return []

    def owner_cut_off(self, planned: PlannedFault) -> Pids:
        """A master that holds jobs no longer hears the others, which have given its slots to its
        replica. Clients can still reach it, and it accepts writes."""
        with self._cluster.cut_off(self._slot(planned)):
            self._wait_out(BRIEF, planned)
        self._cluster.wait_until_whole()
        return []

    def owner_failed_over(self, planned: PlannedFault) -> Pids:
        """CLUSTER FAILOVER, as an operator asks for it."""
        self._cluster.promote(self._slot(planned))
        self._cluster.wait_until_whole()
        return []

    def slot_moved(self, planned: PlannedFault) -> Pids:
        """The slot of a shard moves to another master, with its keys."""
        with self._cluster.moving(self._slot(planned)):
            self._wait_out(BRIEF, planned)
        self._cluster.wait_until_whole()
        return []

    # -- the database

    def database_crashed(self, planned: PlannedFault) -> Pids:
        """PostgreSQL ends at once, as in a crash, and starts again."""
        server = self._postgres
        server.stop()
        self._wait_out(BRIEF, planned)
        server.start()
        return []

    def database_cut(self, planned: PlannedFault) -> Pids:
        """PostgreSQL ends every connection, as an administrator or a failover does."""
        eventually(lambda: self._postgres.terminate(self._deployment.database["NAME"]))
        return []

    # -- the clock

    def clock_jumped(self, planned: PlannedFault) -> Pids:
        """The clock of a Redis jumps to up to three leases before or after the true time."""
        server = self._pick(planned, self._deployment.clocked_servers)
        ahead = self._furthest_jump * (2 * planned.share - 1)
        if abs(ahead - server.clock.ahead) < SHORTEST_JUMP:
            ahead += 2 * SHORTEST_JUMP
        before_ms, before = self._ends(server)
        server.clock.jump(ahead)
        jumped = ledger.now_ns()
        if before:
            _, after = self._ends(server)
            ledger.write(
                "jump", jumped=jumped, ahead=round(server.clock.ahead * 1000),
                before_ms=before_ms, before=before, after=after,
            )  # fmt: skip
        eventually(server.shows)
        return []

    def _ends(self, server: RedisServer) -> tuple[int, list[ledger.Place]]:
        """The time of the single Redis in ms, and the ends of all its streams. With several servers
        there is nothing to record: the verdict compares no times by their clocks."""
        if self._deployment.place.on != "redis":
            return 0, []
        streams = [keys.events for keys in self._deployment.place.keys]
        return eventually(lambda: ends_of(server, streams))

    def worker_clock_jumped(self, planned: PlannedFault) -> Pids:
        """The clock of a worker or of the bridge jumps to up to an hour before or after the true
        time."""

        return self._move_clock(planned, lambda: list(self._deployment.all_workers()))

    def producer_clock_jumped(self, planned: PlannedFault) -> Pids:
        """The clock of a producer jumps to up to an hour before or after the true time."""
        return self._move_clock(planned, lambda: self._deployment.producers)

    def _move_clock(
        self, planned: PlannedFault, processes: Callable[[], Sequence[Worker | Producer]]
    ) -> Pids:
        def jump() -> bool:
            process = self._pick(planned, processes())
            assert process.clock is not None
            if not process.clock.moves(process.pid):
                return False
            process.clock.jump(HOUR * (2 * planned.share - 1))
            return True

        eventually(jump)
        return []  # no process was stopped

    # -- how

    def _server(self, planned: PlannedFault) -> RedisServer:
        return self._deployment.server(self._keys(planned).shard)

    def _proxy(self, planned: PlannedFault) -> Proxy:
        return self._deployment.proxy(self._keys(planned).shard)

    def _url(self, planned: PlannedFault) -> str:
        return self._deployment.url(self._keys(planned).shard)

    @property
    def _postgres(self) -> PostgresServer:
        assert self._deployment.postgres is not None
        return self._deployment.postgres

    @property
    def _fleet(self) -> Fleet:
        assert self._deployment.fleet is not None
        return self._deployment.fleet

    @property
    def _cluster(self) -> ClusterNodes:
        assert self._deployment.cluster is not None
        return self._deployment.cluster

    def _keys(self, planned: PlannedFault) -> Keys:
        """The keys of the shard that the fault affects."""
        return self._pick(planned, self._deployment.place.keys)

    def _slot(self, planned: PlannedFault) -> int:
        return slot(tag(self._keys(planned).shard))

    def _at(self, planned: PlannedFault) -> int:
        return self._pick(planned, range(len(self._deployment.workers)))

    def _worker(self, planned: PlannedFault) -> Worker:
        return self._deployment.workers[self._at(planned)]

    def _children(self, of_jobs: bool | None = None) -> Pids:
        def look() -> Pids:
            self._tail.poll()
            found = [pid for worker in self._deployment.workers for pid in worker.children]
            ran = self._tail.workers
            return [pid for pid in found if of_jobs is None or (pid in ran) == of_jobs]

        return eventually(look)

    @staticmethod
    def _pick(planned: PlannedFault, victims: Sequence[Found]) -> Found:
        return victims[min(int(planned.pick * len(victims)), len(victims) - 1)]

    @staticmethod
    def _wait_out(bounds: tuple[float, float], planned: PlannedFault) -> None:
        """Wait for the length of the fault."""
        low, high = bounds
        time.sleep(low + (high - low) * planned.share)

    def _kill_child(self, planned: PlannedFault, *, of_jobs: bool) -> Pids:
        def kill() -> Pids:
            child = find(self._pick(planned, self._children(of_jobs)))
            if child is None or not is_alive(child):
                return []
            child.kill()
            eventually(lambda: not is_alive(child))
            return [child.pid]

        return eventually(kill)

    def _replace(self, planned: PlannedFault, *, same_name: bool) -> Pids:
        at, workers = self._at(planned), self._deployment.workers
        former = workers[at]
        pids = [former.pid, *former.children]
        former.kill()
        eventually(lambda: not former.tree())  # its children have noticed
        workers[at] = self._deployment.start_worker(former.name if same_name else "")
        return pids

    def _freeze(self, pids: Pids, bounds: tuple[float, float], planned: PlannedFault) -> Pids:
        """Freeze the processes that still exist, but none of them unless the first one does."""
        with self._signalling:  # else another fault could resume one before it is seen to stop
            frozen = [process for pid in pids if (process := find(pid)) and is_alive(process)]
            if not frozen or frozen[0].pid != pids[0]:
                return []
            for process in frozen:
                signal_if_there(process, signal.SIGSTOP)
            eventually(lambda: all(map(is_frozen, frozen)))
        self._wait_out(bounds, planned)
        with self._signalling:
            for process in reversed(frozen):  # the supervisor last, so that it notices nothing
                signal_if_there(process, signal.SIGCONT)
        return pids

    def _change_master(
        self, how: Callable[[RedisServer], object], heal: Callable[[RedisServer], object]
    ) -> Pids:
        fleet, former = self._fleet, self._fleet.master
        how(former)
        eventually(lambda: fleet.master is not former, 60, every=0.05)
        heal(former)
        eventually(fleet.is_whole, 60, every=0.1)
        return []


def ends_of(server: RedisServer, streams: Sequence[str]) -> tuple[int, list[ledger.Place]] | None:
    """The time of a server in ms, and the positions behind the last event of each stream; None if
    it does not answer."""
    try:
        with Redis.from_url(server.url, decode_responses=True, socket_timeout=10) as client:
            pipeline = client.pipeline(transaction=True).time()
            for stream in streams:
                pipeline.xinfo_stream(stream)
            (seconds, micros), *found = pipeline.execute()
    except RedisError:
        return None
    ids = [info["last-generated-id"].split("-") for info in found]
    places = [(int(ms), 1000 * int(number) + 999) for ms, number in ids]
    return seconds * 1000 + micros // 1000, places


def find(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def signal_if_there(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def is_frozen(process: psutil.Process) -> bool:
    """True also when the process has ended."""
    return not is_alive(process) or bool(process.status() == psutil.STATUS_STOPPED)


def refusal(client: Redis, keys: Keys) -> str:
    """The error with which Redis refuses a write in this shard, or "" if it accepts it."""
    probe = keys.base + "probe"
    try:
        client.set(probe, 1)
        client.delete(probe)
    except RedisError as error:
        return f"{type(error).__name__} {error}"
    return ""


def client_id(client: Redis) -> int:
    """The number of its connection; 0 if Redis does not answer."""
    try:
        return int(client.client_id())
    except RedisError:
        return 0
