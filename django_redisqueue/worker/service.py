"""Puts a worker together: child slots, fork server, supervisor; and what runs in each child."""

from __future__ import annotations

import logging
import os
import platform
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from types import FrameType

from ..conf import Settings, get_settings
from ..core.worker_data import WorkerReport
from ..exceptions import InvalidOption
from ..signals import child_started, child_stopping
from .child.databases import close_all
from .child.forks import reset_signals_in_forks
from .child.loop import Child, ChildOptions
from .child_state import FILES_PER_CHILD, ChildState
from .identity import Worker, this_worker
from .maintenance import bridge, maintenance
from .maintenance.bridge import BridgeChild
from .maintenance.maintenance import MaintenanceChild
from .probe import HeartbeatFile
from .supervisor.child_handle import ChildHandle, unreported_jobs
from .supervisor.control_listener import ControlListener
from .supervisor.fork_server import ForkServer, Role
from .supervisor.heartbeat import HeartbeatCallbacks, Heartbeats, ShardAnswers
from .supervisor.shard_roles import RoleInRedis, ShardRoles
from .supervisor.supervisor import (
    EXIT_DONE,
    EXIT_QUEUES_EMPTY,
    Supervisor,
    SupervisorOptions,
    WakePipes,
)
from .supervisor.watchdog import resident_bytes

logger = logging.getLogger("django_redisqueue")

OWN_FILES = 32  # that the supervisor may open besides the pipes of its children
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # SIGHUP: the terminal was closed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of ``runworker``."""

    processes: int
    child: ChildOptions
    supervisor: SupervisorOptions = field(default_factory=SupervisorOptions)
    name: str | None = None
    heartbeat_file: str | None = None


class Service:
    """One worker: a supervisor and its child processes."""

    def __init__(self, options: WorkerOptions, settings: Settings | None = None) -> None:
        self._options = options
        self._settings = settings or get_settings()
        self.worker: Worker = this_worker(options.name)
        self._roles: list[Role] = ["jobs"]
        self._roles *= options.processes
        self._roles += ["maintenance", "bridge"] if self._settings.mirror else ["maintenance"]
        self._file_limit = _raise_file_limit(options.processes, len(self._roles))
        self._states = _child_states(self._roles, {"jobs": options.child.slots})
        self._wake_pipes = WakePipes(*os.pipe(), *os.pipe())
        pipes = self._wake_pipes
        for end in (pipes.children_read, pipes.children_write, pipes.own_read, pipes.own_write):
            os.set_blocking(end, False)

    def run(self) -> int:
        """Work until told to stop; the exit code. Call in the main thread, before other threads."""
        close_all()
        fork_server = ForkServer(self._run_child)
        handles = [
            ChildHandle(state, role) for state, role in zip(self._states, self._roles, strict=True)
        ]
        supervisor = Supervisor(
            self.worker, fork_server, handles, self._wake_pipes,
            self._settings, self._options.supervisor,
        )  # fmt: skip
        heartbeat_file = HeartbeatFile(self._options.heartbeat_file)
        answers = ShardAnswers(self._settings.shards, heartbeat_file, self._note_shard)
        reporter = WorkerReporter(supervisor, handles, self._options.child)
        callbacks = HeartbeatCallbacks(
            supervisor.children, supervisor.running, supervisor.is_stopping, supervisor.notify,
            partial(unreported_jobs, handles), answers.note,
            self.worker.id, reporter.text, supervisor.on_order,
            ShardRoles(handles, self._settings, _roles()),
        )  # fmt: skip
        heartbeats = Heartbeats(self._settings, self._options.child.queues, callbacks)
        control = ControlListener(
            self._settings, self.worker.id, supervisor.on_cancel, supervisor.on_order
        )
        with _signals_to(supervisor, self._wake_pipes.own_write):
            control.start()
            code = supervisor.run(heartbeats)
        heartbeat_file.remove()
        return code

    def _note_shard(self, shard: int, answers: bool) -> None:
        for state in self._states:
            state.note_shard(shard, answers)

    def _run_child(self, role: Role, slot: int, child: str) -> int:
        """The life of a freshly forked child; returns its exit code."""
        reset_signals_in_forks()
        self._close_other_slots(slot)
        state = self._states[slot]
        runner: Child | MaintenanceChild | BridgeChild
        if role == "maintenance":
            runner = MaintenanceChild(child, state, self._settings)
        elif role == "bridge":
            burst = self._options.supervisor.burst
            runner = BridgeChild(child, state, self._settings, burst=burst)
        else:
            options, siblings = self._options.child, self._options.processes
            runner = Child(child, state, options, self._settings, self._wake_supervisor, siblings)
        child_started.send(sender=type(runner), child=child)
        queues_empty = runner.run()
        state.keep_alive(0)  # receivers of the signal may take any time
        child_stopping.send(sender=type(runner), child=child)
        close_all()
        return EXIT_QUEUES_EMPTY if queues_empty else EXIT_DONE

    def _close_other_slots(self, slot: int) -> None:
        """Close the pipes of other children, and restore the limit of open files.

        Programs that jobs start inherit the limit. Some are slow with a high one (they close every
        possible descriptor) or fail (``select`` cannot watch descriptors over 1023).
        """
        for state in self._states:
            if state.number != slot:
                state.close()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._file_limit, hard))

    def _wake_supervisor(self) -> None:
        try:
            os.write(self._wake_pipes.children_write, b"!")
        except BlockingIOError:
            return  # the pipe is full: the supervisor will wake up anyway


class WorkerReporter:
    """Describes a supervisor and its children. For any thread."""

    def __init__(
        self, supervisor: Supervisor, handles: Sequence[ChildHandle], options: ChildOptions
    ) -> None:
        self._supervisor = supervisor
        self._handles = handles
        self._options = options
        self._started_ms = int(time.time() * 1000)
        self._version = version("django-redisqueue")

    def text(self) -> str:
        """The report as JSON."""
        processes = [handle for handle in self._handles if handle.role == "jobs"]
        return WorkerReport(
            platform.node(), self._version, self._started_ms, self._supervisor.state.value,
            self._options.queues, len(processes), self._options.threads, self._children(),
        ).text()  # fmt: skip

    def _children(self) -> dict[str, int]:
        found = {}
        for handle in self._handles:
            child, pid = handle.child, handle.pid  # the main thread may change them meanwhile
            if child:
                found[child.rpartition(".")[2]] = resident_bytes(pid) if pid else 0
        return found


def _roles() -> dict[Role, RoleInRedis]:
    """What children lead."""
    return {
        "maintenance": RoleInRedis(maintenance.ROLE, maintenance.LEASE_MS),
        "bridge": RoleInRedis(bridge.ROLE, bridge.LEASE_MS),
    }


def _raise_file_limit(processes: int, slots: int) -> int:
    """Allow this process and its children enough open files; returns the limit before."""
    needed = slots * FILES_PER_CHILD + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):
        fits = (hard - OWN_FILES) // FILES_PER_CHILD - (slots - processes)
        raise InvalidOption(
            f"--processes {processes} needs {needed} open files, and this process may have {hard}: "
            f"raise that (ulimit -n {needed}, or LimitNOFILE={needed} in its systemd unit), or "
            f"lower --processes{f' to {fits}' if fits > 0 else ''}"
        ) from None
    return soft


def _child_states(roles: Sequence[Role], job_slots: Mapping[Role, int]) -> list[ChildState]:
    try:
        return [ChildState(slot, job_slots.get(role, 1)) for slot, role in enumerate(roles)]
    except OSError as error:  # the machine's limit, or files that something else has opened
        raise InvalidOption(
            f"there is no room for {len(roles)} child processes ({error}): lower --processes"
        ) from error


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
