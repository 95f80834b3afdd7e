"""Ids are unique, whatever an application does to the module ``random``."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from django_redisqueue.core.ids import manual_job_id, new_gather_id, new_job_id, new_workflow_id

FORKS = """
import os
from django_redisqueue.core.ids import new_job_id
new_job_id()
for _ in range(3):
    pid = os.fork()
    if not pid:
        break
    os.waitpid(pid, 0)
print(new_job_id().split("_")[2], flush=True)
"""


@pytest.mark.parametrize(
    "make", [new_job_id, new_workflow_id, new_gather_id, lambda: manual_job_id("nightly")]
)
def test_a_seed_of_the_application_repeats_no_id(make: Callable[[], str]) -> None:
    def random_part() -> str:
        random.seed(42)
        return make().split("_")[-2]

    state = random.getstate()
    try:
        assert random_part() != random_part()
    finally:
        random.setstate(state)


def test_forked_processes_make_different_ids() -> None:
    found = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(set(found)) == len(found) == 4
