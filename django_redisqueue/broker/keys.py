"""The name of every key of the queue, with its Redis type. The scripts build the same names in
their includes, and a test compares the two.

All keys of a shard have its tag in literal braces: Redis Cluster hashes only what is between them,
so they live in one slot and one script may touch them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.ids import tag

DEFAULT_PREFIX = "job_queue"


class Key:
    """A key whose name is its owner's ``base`` and a suffix."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def __get__(self, owner: QueueKeys | Keys, kind: type[object]) -> str:
        return owner.base + self._suffix


class KeyOf:
    """Keys whose names are their owner's ``base`` and a pattern, in which "*" is an id or name."""

    def __init__(self, pattern: str) -> None:
        self._before, _, self._after = pattern.partition("*")

    def __get__(self, owner: QueueKeys | Keys, kind: type[object]) -> Callable[[str], str]:
        return lambda name: f"{owner.base}{self._before}{name}{self._after}"


@dataclass(frozen=True, slots=True)
class QueueKeys:
    base: str

    queued = Key("")  # LIST of ids of priority 0: LPUSH in, RPOP out
    priority = Key(":priority")  # ZSET of queued ids of another priority, or aside (slow_claim.lua)
    keyed = Key(":keyed")  # ZSET of queued ids with a lane, in order (include/lane_names.lua)
    shares = Key(":shares")  # ZSET of shares with ready lanes, by priority and pass
    passes = Key(":passes")  # ZSET of the passes of shares without ready lanes
    parked = Key(":parked")  # HASH: lane -> the limit key that it waits for
    scheduled = Key(":scheduled")  # ZSET of ids by due ms
    retrying = Key(":retrying")  # ZSET of ids by due ms
    processing = Key(":processing")  # ZSET of ids by claim ms
    waiting = Key(":waiting")  # ZSET of ids outside workflows that wait for parents, by ms since
    completed = Key(":completed")  # ZSET of ids by ms of their end
    failed = Key(":failed")  # ZSET of ids by ms of their end
    cancelled = Key(":cancelled")  # ZSET of ids by ms of their end
    pauses = Key(":pauses")  # HASH: limit keys and s:<share> that are paused -> "<ms> <who>"
    # STREAM of at, paused (1 or 0), key and by: the newest pauses
    pause_history = Key(":pause_history")
    deleted = Key(":deleted")  # ZSET of deleted ids whose events the mirror has not read, by end ms
    wake = Key(":wake")  # LIST of at most one token without content
    meta = Key(":meta")  # HASH: paused, paused_by, counters

    lane = KeyOf(":lane:*")  # ZSET of the queued ids of one lane
    ready_lanes = KeyOf(":lanes:*")  # ZSET of the lanes of a share that no limit refused
    parked_at = KeyOf(":parked:*")  # ZSET of lanes that wait for a limit


@dataclass(frozen=True, slots=True)
class Keys:
    prefix: str = DEFAULT_PREFIX
    shard: int = 0
    is_on_cluster: bool = False
    base: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", f"{self.prefix}:{{{tag(self.shard)}}}:")

    # HASH: shards, leader, leader_until_ms; of heartbeats: run_id, beat_ms, steady_ms, reached_ms;
    # of the mirror: incarnation, mirror_position; of schedules: schedule_set, the set whose
    # schedules are defined; of the stream: events, how many were ever written.
    meta = Key("meta")
    workers = Key("workers")  # ZSET: child -> lease deadline ms
    serving = Key("serving")  # ZSET: queue -> ms until which some worker serves it
    events = Key("events")  # STREAM: every transition; an entry has those of one script
    trim_index = Key("events:milestones")  # LIST of "<entry> <events before it>": where to trim
    pending_writes = Key("flows")  # LIST of work that scripts left for later: "<verb>:<id>"
    workflows = Key("workflows")  # ZSET: workflow -> ms when it will be cleaned up
    gathers = Key("gathers")  # ZSET: key of a gather -> ms when it will be checked next
    newest_gathers = Key("gathers:newest")  # ZSET: key of a gather -> ms of its start
    closed_gathers = Key("gathers:closed")  # SET of keys of gathers whose files are to be deleted
    uniques = Key("uniques")  # ZSET: unique key -> ms when it was taken
    unique_lifetimes = Key("uniques:until")  # ZSET: unique key with its own lifetime -> its end
    schedules = Key("schedules")  # ZSET: schedule -> ms of its next due time, inf if none
    schedule_sets = Key("schedule_sets")  # ZSET: digest of some code's schedules -> ms first seen
    schedule_sets_alive = Key("schedule_sets:alive")  # ZSET: digest -> ms until which it is kept
    continuations = Key("continuations")  # HASH: token -> what remains of a clear or requeue
    outbox = Key("outbox")  # ZSET of ids that may have outbox rows, by ms when accepted
    result_files = Key("result_files")  # HASH: name of a file with a large result -> job
    queues = Key("queues")  # SET of queues that ever had a job, or were in QUEUES
    limits = Key("limits")  # HASH: the numbers of limits and shares
    # In the following sorted sets, all scores are 0 unless an instant is named.
    slots = Key("slots")  # ZSET of "<limit key> <job id>" of processing jobs
    waiting_limits = Key("limits:waiting")  # ZSET of "<limit key> <queue>" with parked lanes
    waiting_chunks = Key("chunks:waiting")  # the same for chunk lanes not yet full, or paused
    due_limits = Key("limits:due")  # ZSET: rate with parked lanes -> ms when it allows again
    rates = Key("limits:rates")  # ZSET of rates whose bucket may not be full
    changed_limits = Key("limits:changed")  # HASH: limit -> where to resume calling its lanes
    limit_passes = Key("limits:passes")  # HASH: "<limit key> <queue>" -> pass of its last lane
    timer = Key("timer")  # LIST of at most one token: a job is due earlier than the timer expects
    nothing = Key("nothing")  # never exists: a command that names it fails while the slot moves
    control = Key("control")  # CHANNEL: "cancel <child> <job> <lease>", "order <worker> <ms> ..."

    job = KeyOf("job:*")  # HASH: the job
    child_processing = KeyOf("child:*:processing")  # LIST of "<call>:<id>" that a child holds
    resent = KeyOf("child:*:resent")  # STRING: number of the last call that it resent
    child_wake = KeyOf("child:*:wake")  # LIST of tokens that end this child's own wait
    worker = KeyOf("worker:*")  # STRING: its report about itself (core/records.py)
    worker_order = KeyOf("worker:*:order")  # STRING: "<ms> <order>", the last order to it
    workflow = KeyOf("workflow:*")  # HASH: counts, state, which parents had results
    workflow_held = KeyOf("workflow:*:held")  # LIST of ids held back by a pause or failure
    dependants = KeyOf("job:*:then")  # LIST of names that wait for a job, when many do
    gather = KeyOf("gather:*")  # HASH: listener -> result as JSON, and queryDoneCount
    gather_plan = KeyOf("gather:*:plan")  # HASH: what the gather waits for, and what it enqueues
    followers = KeyOf("job:*:followers")  # ZSET: ids outside its workflow that wait for a job
    steps = KeyOf("steps:*")  # HASH: what an unfinished job has stored (steps.lua)
    event = KeyOf("event:*")  # STRING: payload of an event that was sent
    awaiting = KeyOf("awaiting:*")  # ZSET: ids of jobs that wait for an event, by ms since
    waits = KeyOf("waits:*")  # ZSET: jobs parked for an event, approval or sleep, by ms
    index = KeyOf("index:*")  # SET of ids of unfinished jobs that share a property
    unique = KeyOf("unique:*")  # STRING: the id of the job that has a unique key
    schedule = KeyOf("schedule:*")  # HASH: its definition and its state (schedule.lua)
    tat = KeyOf("limit:*:tat")  # STRING: when a rate's bucket is full again, in us
    done = KeyOf("done:*")  # CHANNEL: the final status of a watched job

    def queue(self, name: str) -> QueueKeys:
        return QueueKeys(f"{self.base}q:{name}")

    @property
    def status_channel(self) -> str:  # CHANNEL: every transition as JSON
        if self.is_on_cluster:  # a sharded channel (events.lua)
            return f"{self.base}job_status"
        return "job_status" if self.prefix == DEFAULT_PREFIX else f"{self.prefix}:job_status"

    @property
    def workflow_channel(self) -> str:  # CHANNEL: every transition of a workflow as JSON
        return f"{self.status_channel}:workflows"
