"""A child's id identifies its process, and tells whether that process is gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from django_redisqueue.worker.identity import (
    machine,
    name_and_number,
    parse_child,
    start_time,
    this_worker,
)


def test_the_identity_of_a_process_tells_if_it_is_gone() -> None:
    me = this_worker("alpha")
    assert not me.is_gone
    child = me.child(3)
    assert child == f"alpha.{machine()}.{os.getpid()}.{start_time(os.getpid())}.3"
    assert parse_child(child) == me
    pid = os.fork()
    if pid == 0:
        signal.pause()
    other = parse_child(f"alpha.{machine()}.{pid}.{start_time(pid)}.1")
    assert other is not None
    assert not other.is_gone
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert other.is_gone  # a zombie has ended
    os.waitpid(pid, 0)
    assert other.is_gone


def test_a_child_by_the_name_of_its_worker_and_its_number() -> None:
    mine = this_worker("mine")
    assert name_and_number(mine.child(3)) == ("mine", "3")
    assert name_and_number(mine.child(1, "bridge")) == ("mine", "bridge1")
    assert name_and_number("made.up") == ("made.up", "up")


def test_a_reused_pid_is_another_process() -> None:
    reused = parse_child(f"alpha.{machine()}.{os.getpid()}.{start_time(os.getpid()) - 1}.1")
    assert reused is not None
    assert reused.is_gone


def test_nothing_is_known_about_processes_on_other_machines() -> None:
    elsewhere = parse_child("alpha.deadbeef.999999.1.1")
    assert elsewhere is not None
    assert not elsewhere.is_gone
    for strange in ("", "alpha", "a.b.c.d.e", "a.b.1.2.3.4"):
        assert parse_child(strange) is None


def test_without_a_boot_id_each_worker_counts_as_a_separate_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sandboxes may share a host name, and in each of them the worker has pid 1. One must not take
    over from another that is alive."""

    def is_missing(path: Path) -> str:
        raise FileNotFoundError(path)

    found = set()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", is_missing)
        for _ in range(2):
            machine.cache_clear()
            found.add(machine())
    machine.cache_clear()
    assert len(found) == 2


def test_a_process_hidden_from_proc_is_not_considered_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid, other users' processes have no folder in /proc, but accept signal 0."""
    worker = parse_child(f"alpha.{machine()}.{2**22 + 1}.5.1")
    assert worker is not None
    assert worker.is_gone

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(f"{pid} {number}")

    monkeypatch.setattr(os, "kill", refuse)
    assert not worker.is_gone
