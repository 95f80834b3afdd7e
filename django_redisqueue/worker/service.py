"""Puts a worker together: seats, zygote, supervisor, attendant; and what runs in a child."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

from ..conf import Settings, get_settings
from ..exceptions import InvalidOption
from ..signals import child_started, child_stopping
from .attendant import Attendant
from .beacon import Beacon
from .bridge import BridgeChild
from .control import ControlListener
from .databases import close_all
from .forks import let_forks_be_terminated
from .identity import Worker, this_worker
from .loop import Child, ChildOptions
from .maintenance import Maintenance
from .posts import EXIT_DONE, EXIT_DRY, Bells, Post, SupervisorOptions, held
from .resources import allow_files, limit_files, most_files
from .seat import FILES, Seat
from .supervisor import Supervisor
from .zygote import Role, Zygote

logger = logging.getLogger("django_redisqueue")

OWN_FILES = 32  # that the supervisor may have open besides its seats: connections, logs
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the last: its terminal is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Everything ``runworker`` can be told."""

    processes: int
    child: ChildOptions
    supervisor: SupervisorOptions = field(default_factory=SupervisorOptions)
    name: str | None = None
    heartbeat_file: str | None = None


class Service:
    """One worker process tree."""

    def __init__(self, options: WorkerOptions, settings: Settings | None = None) -> None:
        self._options = options
        self._settings = settings or get_settings()
        self.worker: Worker = this_worker(options.name)
        self._roles: list[Role] = ["jobs"]
        self._roles *= options.processes
        self._roles += ["maintenance", "bridge"] if self._settings.mirror else ["maintenance"]
        self._files_before = _room_for(options.processes, len(self._roles))
        self._seats = _seats(self._roles, {"jobs": 1 + options.child.async_concurrency})
        bell, bell_end = os.pipe()
        own, own_end = os.pipe()
        for end in (bell, bell_end, own, own_end):
            os.set_blocking(end, False)
        self._bells = Bells(bell, bell_end, own, own_end)

    def run(self) -> int:
        """Work until told to stop; the exit code. Call in the main thread, before other threads."""
        close_all()
        zygote = Zygote(self._enter_child)
        posts = [Post(seat, role) for seat, role in zip(self._seats, self._roles, strict=True)]
        supervisor = Supervisor(
            self.worker, zygote, posts, self._bells, self._settings, self._options.supervisor
        )
        beacon = Beacon(self._options.heartbeat_file)
        attendant = Attendant(
            self._settings, self._options.child.queues, beacon,
            supervisor.children, supervisor.running, supervisor.notify, partial(held, posts),
        )  # fmt: skip
        control = ControlListener(self._settings, supervisor.on_cancel)
        with _signals(supervisor, self._bells.own_end):
            control.start()
            code = supervisor.run(attendant)
        beacon.remove()
        return code

    def _enter_child(self, role: Role, number: int, child: str) -> int:
        """In the freshly forked child."""
        let_forks_be_terminated()
        self._leave_other_seats(number)
        seat = self._seats[number]
        runner: Child | Maintenance | BridgeChild
        if role == "maintenance":
            runner = Maintenance(child, seat, self._settings)
        elif role == "bridge":
            burst = self._options.supervisor.burst
            runner = BridgeChild(child, seat, self._settings, burst=burst)
        else:
            options, siblings = self._options.child, self._options.processes
            runner = Child(child, seat, options, self._settings, self._ring, siblings)
        child_started.send(sender=type(runner), child=child)
        is_dry = runner.run()
        seat.keep_alive(0)  # the project's receivers take as long as they take
        child_stopping.send(sender=type(runner), child=child)
        close_all()
        return EXIT_DRY if is_dry else EXIT_DONE

    def _leave_other_seats(self, number: int) -> None:
        """Close what is not this child's, and take back the limit of open files that the supervisor
        has raised for all the seats. Programs that jobs start inherit it, and some are slow with a
        high one (they close every number below it) or wrong (select() ends at 1023)."""
        for seat in self._seats:
            if seat.number != number:
                seat.close()
        limit_files(self._files_before)

    def _ring(self) -> None:
        try:
            os.write(self._bells.bell_end, b"!")
        except BlockingIOError:
            return  # the pipe is full of rings: the supervisor will look


def _room_for(processes: int, seats: int) -> int:
    """See that there may be files enough for all seats; what the limit of open files was before."""
    needed = seats * FILES + OWN_FILES
    try:
        return allow_files(needed)
    except (OSError, ValueError):
        most = most_files()
        fits = (most - OWN_FILES) // FILES - (seats - processes)
        raise InvalidOption(
            f"--processes {processes} needs {needed} open files, and this process may have {most}: "
            f"raise that (ulimit -n {needed}, or LimitNOFILE={needed} in its systemd unit), or "
            f"lower --processes{f' to {fits}' if fits > 0 else ''}"
        ) from None


def _seats(roles: Sequence[Role], slots: Mapping[Role, int]) -> list[Seat]:
    try:
        return [Seat(number, slots.get(role, 1)) for number, role in enumerate(roles)]
    except OSError as error:  # of the machine, or files that something else has opened
        raise InvalidOption(
            f"there is no room for {len(roles)} child processes ({error}): lower --processes"
        ) from error


@contextmanager
def _signals(supervisor: Supervisor, wake: int) -> Iterator[None]:
    """Pass them on to the supervisor; the former handlers come back at the end. What is ignored (by
    nohup) stays so."""

    def handle(number: int, frame: FrameType | None) -> None:
        supervisor.on_signal(number)

    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    before_wake = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before_wake)
        for number, handler in before.items():
            signal.signal(number, handler)
