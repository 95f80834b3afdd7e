"""Assembles a worker: child slots, fork server, supervisor; and the work of each child."""

from __future__ import annotations

import math
import platform
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from types import FrameType

from django.core.cache import caches
from django.db import connections

from ..conf import get_settings
from ..core.records import WorkerReport
from ..exceptions import InvalidOption
from ..signals import child_started, child_stopping
from .child.forks import end_processes, reset_signals_in_forks
from .child.loop import Child
from .child_state import FILES_PER_CHILD, ChildState
from .identity import Worker, name_and_number, this_worker
from .maintenance import bridge, maintenance
from .maintenance.bridge import BridgeRole
from .maintenance.leader import STOP, MakeRole, run_in_child
from .maintenance.maintenance import Maintenance
from .options import WorkerOptions
from .probe import HeartbeatFile
from .supervisor.child_handle import ChildHandle
from .supervisor.control_listener import ControlListener
from .supervisor.fork_server import ForkServer, Role
from .supervisor.heartbeat import HeartbeatCallbacks, Heartbeats, HeartbeatThread, ShardNotes
from .supervisor.supervisor import EXIT_DONE, EXIT_QUEUES_EMPTY, Supervisor, WakePipe
from .supervisor.watchdog import resident_bytes

RECEIVERS = 300.0  # s that the receivers of child_started, or of child_stopping, may take
OWN_FILES = 32  # files that the supervisor may open besides its children's pipes
FILES_PER_SHARD = 2  # of those, the connections for heartbeats and for messages
# Returns True with burst if nothing is left to do: the child must then not be replaced.
Work = Callable[[], bool]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # SIGHUP: the terminal was closed


class Service:
    """One worker: a supervisor and its child processes."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._settings = get_settings()
        self.worker: Worker = this_worker(options.name)
        roles: list[Role] = ["jobs"] * options.processes
        roles += ["maintenance", "bridge"] if self._settings.mirror else ["maintenance"]
        own = OWN_FILES + FILES_PER_SHARD * (self._settings.shards - 1)
        self._file_limit = _raise_file_limit(options.processes, len(roles), own)
        self._handles = [
            ChildHandle(ChildState(slot, options.slots if role == "jobs" else 1), role)
            for slot, role in enumerate(roles)
        ]
        self._child_wakes = WakePipe()
        self.heartbeat_file = HeartbeatFile(options.heartbeat_file)
        self._version = version("django-redisqueue")
        self._started_ms = 0

    def run(self, away: Collection[int] = ()) -> int:
        """Work until told to stop. Call before other threads start. ``away``: silent shards."""
        self._started_ms = int(time.time() * 1000)
        _close_databases()
        _forget_caches()
        fork_server = ForkServer(self._run_child)
        handles, own_wakes = self._handles, WakePipe()
        supervisor = Supervisor(
            self.worker, fork_server, handles, self._child_wakes, own_wakes,
            self._settings, self._options,
        )  # fmt: skip
        led: dict[Role, tuple[str, int]] = {
            "maintenance": (maintenance.ROLE, maintenance.LEASE_MS),
            "bridge": (bridge.ROLE, bridge.LEASE_MS),
        }
        notes = ShardNotes(handles, self._settings, led, self.heartbeat_file, away)
        callbacks = HeartbeatCallbacks(
            self.worker.id, partial(self._report, supervisor),
            supervisor.is_stopping, supervisor.notify, supervisor.on_order,
        )  # fmt: skip
        heartbeats = Heartbeats(
            [
                HeartbeatThread(
                    self._settings, self._options.queues, handles, notes, callbacks, shard
                )
                for shard in range(self._settings.shards)
            ]
        )
        control = ControlListener(
            self._settings, self.worker.id, supervisor.on_cancel, supervisor.on_order
        )
        with _signals_to(supervisor, own_wakes.writer):
            control.start()
            return supervisor.run(heartbeats)

    def _report(self, supervisor: Supervisor) -> str:
        """The description of the worker, as JSON. For any thread."""
        # The main thread may change a handle at any time: read each attribute once.
        found = [(handle.child, handle.pid) for handle in self._handles]
        memory = {
            name_and_number(child)[1]: resident_bytes(pid) if pid else 0
            for child, pid in found
            if child
        }
        options = self._options
        return WorkerReport(
            platform.node(), self._version, self._started_ms, supervisor.state.value,
            options.queues, options.processes, options.threads, memory,
        ).text()  # fmt: skip

    def _run_child(self, role: Role, slot: int, child: str) -> int:
        """The life of a freshly forked child; returns its exit code."""
        reset_signals_in_forks()
        self._close_other_slots(slot)
        state = self._handles[slot].state
        sender, work = self._work_of(role, child, state)
        state.keep_alive(RECEIVERS)
        child_started.send(sender=sender, child=child)
        is_drained = work()
        state.keep_alive(RECEIVERS)
        child_stopping.send(sender=sender, child=child)
        end_processes()
        connections.close_all()
        return EXIT_QUEUES_EMPTY if is_drained else EXIT_DONE

    def _work_of(self, role: Role, child: str, state: ChildState) -> tuple[type, Work]:
        """The class that does a child's work, and the work itself."""
        options, settings = self._options, self._settings
        if role == "jobs":
            jobs = Child(child, state, options, settings, self._child_wakes.wake)
            return Child, jobs.run
        if role == "maintenance":
            make: MakeRole = partial(Maintenance, child, settings)
            return Maintenance, partial(run_in_child, settings.shards, make, state)
        last, stop = (math.inf, math.inf) if options.burst else (bridge.LAST, STOP)
        make = partial(BridgeRole, child, settings, last=last)
        return BridgeRole, lambda: run_in_child(settings.shards, make, state, stop) or options.burst

    def _close_other_slots(self, slot: int) -> None:
        """Close the pipes of other children, and restore the limit of open files.

        Programs that jobs start inherit the limit. Some are slow with a high one (they close every
        possible descriptor) or fail (``select`` cannot watch descriptors over 1023).
        """
        for handle in self._handles:
            if handle.state.number != slot:
                handle.state.close()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._file_limit, hard))


def _close_databases() -> None:
    """Close connections and pools: children that share a socket would read each other's rows."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):  # PostgreSQL and Oracle
            connection.close_pool()


def _forget_caches() -> None:
    """Close the cache clients, and forget those that do not close their sockets."""
    caches.close_all()
    for alias in caches:
        with suppress(AttributeError):  # it was not used
            del caches[alias]


def _raise_file_limit(processes: int, slots: int, own: int) -> int:
    """Allow this process and its children enough open files; returns the previous limit. ``own``:
    those that are no child's."""
    needed = slots * FILES_PER_CHILD + own
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):
        fits = (hard - own) // FILES_PER_CHILD - (slots - processes)
        raise InvalidOption(
            f"--processes {processes} needs {needed} open files, but this process may have {hard}: "
            f"raise that (ulimit -n {needed}, or LimitNOFILE={needed} in its systemd unit), or "
            f"lower --processes{f' to {fits}' if fits > 0 else ''}"
        ) from None
    return soft


@contextmanager
def _signals_to(supervisor: Supervisor, wake: int) -> Iterator[None]:
    """Pass signals to the supervisor, and restore the handlers at the end.

    Signals that are ignored (by nohup) stay ignored.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        supervisor.on_signal(number)

    handled = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in handled}
    before_wake = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before_wake)
        for number, handler in before.items():
            signal.signal(number, handler)
