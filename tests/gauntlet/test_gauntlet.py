"""A short run of the gauntlet, started from the command line."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.warm import ROOT

from .clock import missing

# None of these lets a lease expire, and the lease is long, so that a busy machine does not either.
FAULTS = (
    "job_child_killed", "supervisor_killed", "redis_killed", "replies_dropped", "connections_cut",
    "producer_killed", "deployed",
)  # fmt: skip
SHORT = ("--rounds", "1", "--lease", "30", "--database", "sqlite", "--no-memory")


def gauntlet(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.gauntlet", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.slow
def test_every_promise_is_kept_in_a_short_run() -> None:
    run = gauntlet(*SHORT, "--side-by-side", "--seed", "7", "--faults", ",".join(FAULTS))
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith("7 faults, seed 7: every promise was kept\n")
    for fault in FAULTS:
        assert re.search(rf"^{fault} +1 ", run.stdout, re.M), run.stdout
    kept = re.findall(r"^kept    (.*)$", run.stdout, re.M)
    assert len(kept) == 13


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_every_promise_is_kept_while_clocks_are_up_to_an_hour_off() -> None:
    faults = "worker_clock_jumped,producer_clock_jumped,job_child_killed"
    run = gauntlet(*SHORT, "--clock-jumps", "--rounds", "3", "--seed", "9", "--faults", faults)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith("9 faults, seed 9: every promise was kept\n")


def test_an_unknown_fault_is_refused_by_name() -> None:
    run = gauntlet(*SHORT, "--faults", "redis_killed,comet")
    assert run.returncode == 2
    assert "there is no fault comet here; there are: bridge_killed, child_frozen, " in run.stderr


def test_clock_faults_need_the_clock_jumps_option() -> None:
    run = gauntlet(*SHORT, "--faults", "clock_jumped,worker_clock_jumped")
    assert run.returncode == 2
    assert "there is no fault clock_jumped, worker_clock_jumped here" in run.stderr


def test_an_unknown_database_is_refused() -> None:
    run = gauntlet("--database", "oracle")
    assert run.returncode == 2
    assert "invalid choice: 'oracle'" in run.stderr
