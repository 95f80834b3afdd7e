"""What goes into the scripts and comes back from them, as records.

Those made for every job are named tuples: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from ..refusals import wrong_key

_CLAIM_HEAD, _CLAIM_STRIDE = 6, 3


class Settled(IntEnum):
    """What became of one outcome (settle.lua)."""

    LEASE_LOST = 0
    ACCEPTED = 1
    REPEATED = 2
    ACCEPTED_AS_CANCELLED = 3
    UNWRITTEN = 4  # a key of the job's queue is of a wrong type: to be sent again


class Lead(IntEnum):
    """The answer to who wants a role that exists once a shard (lead.lua)."""

    NO = 0  # another has it
    YES = 1
    AND_CONTINUE = 2  # yes, and there are continuations


class Verdict(StrEnum):
    """What a child says of a job it held (settle.lua)."""

    COMPLETED = "completed"
    FAILED = "failed"
    RETRYING = "retrying"
    DELAYED = "delayed"  # as retrying, but spends no attempt
    CANCELLED = "cancelled"
    QUEUED = "queued"  # handed back


class Outcome(NamedTuple):
    """One verdict on its way to Redis. ``body`` is JSON; ``detail`` a delay in ms or a reason."""

    id: str
    lease: int
    call: int
    verdict: str
    body: str = ""
    detail: str = ""


class Claimed(NamedTuple):
    """One job as a child receives it."""

    id: str
    queue: str
    task: str
    payload: str
    lease: int
    attempts: int
    recoveries: int
    options: str
    call: int

    def __repr__(self) -> str:
        return f"<Claimed {self.id} of {self.task}>"  # not its payload: it may be redacted


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim: jobs, ids found without a hash, queues to leave out for a while.
    ``broken``: queues that have a key of a wrong type, each with what is wrong."""

    jobs: list[Claimed]
    lost: Sequence[str] = ()
    leave_out: Sequence[str] = ()
    must_be_alone: bool = False
    broken: Mapping[str, str] = field(default_factory=dict)


def parse_finish(reply: Sequence[Any], outcomes: int) -> tuple[list[int], Claim]:
    """The reply of finish.lua: a code of each outcome, and the claim."""
    others, claimed = reply
    codes: list[int] = [Settled.ACCEPTED] * outcomes
    for at in range(0, len(others), 2):
        codes[others[at] - 1] = others[at + 1]
    return codes, parse_claim(claimed)


def parse_claim(reply: Sequence[Any]) -> Claim:
    """The reply of claim_queues.lua."""
    call, lost, leave_out, alone, texts, broken = reply[:_CLAIM_HEAD]
    kinds = [_parse_kind(texts[at]) for at in range(0, len(texts), 2)]
    jobs = []
    for at in range(_CLAIM_HEAD, len(reply), _CLAIM_STRIDE):
        kind = reply[at + 2]
        queue, task, lease, attempts, recoveries = kinds[kind]
        jobs.append(
            Claimed(
                reply[at], queue, task, reply[at + 1], lease, attempts, recoveries,
                texts[2 * kind + 1], call,
            )
        )  # fmt: skip
    return Claim(jobs, lost, leave_out, bool(alone), parse_broken(broken))


def parse_broken(reply: Sequence[str]) -> dict[str, str]:
    """Queue -> what is wrong with a key of it."""
    return {
        queue: wrong_key(problem) or problem
        for queue, problem in zip(reply[::2], reply[1::2], strict=True)
    }


@lru_cache(maxsize=1024)  # those of two batches are mostly the same
def _parse_kind(text: str) -> tuple[str, str, int, int, int]:
    queue, lease, attempts, recoveries, task = text.split(" ", 4)
    return queue, task, int(lease), int(attempts), int(recoveries)


def id_in(entry: str) -> str:
    """The id in an entry of a child's list (held.lua)."""
    return entry.partition(":")[2].partition(" ")[0]
