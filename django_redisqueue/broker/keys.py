"""Every key name of the queue, with its Redis type. The scripts build the same names in their
includes, and a test compares the two.

All keys of a shard have its tag in literal braces: Redis Cluster hashes only what is between them,
so they live in one slot and one script may touch them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.placement import tag

DEFAULT_PREFIX = "job_queue"


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue."""

    base: str

    @property
    def queued(self) -> str:  # LIST of ids of priority 0: LPUSH in, RPOP out
        return self.base

    @property
    def priority(self) -> str:  # ZSET of queued ids of another priority, or aside (slow_claim.lua)
        return f"{self.base}:priority"

    @property
    def keyed(self) -> str:  # ZSET of queued ids with a lane, in order (include/lane_names.lua)
        return f"{self.base}:keyed"

    def lane(self, name: str) -> str:  # ZSET of the queued ids of one lane
        return f"{self.base}:lane:{name}"

    def ready_lanes(self, share: str) -> str:  # ZSET of the lanes of a share that no limit refused
        return f"{self.base}:lanes:{share}"

    @property
    def shares(self) -> str:  # ZSET of shares with ready lanes, by priority and pass
        return f"{self.base}:shares"

    @property
    def passes(self) -> str:  # ZSET of the passes of shares without ready lanes
        return f"{self.base}:passes"

    @property
    def parked(self) -> str:  # HASH: lane -> the limit key that it waits for
        return f"{self.base}:parked"

    def parked_at(self, limit_key: str) -> str:  # ZSET of lanes that wait for a limit
        return f"{self.base}:parked:{limit_key}"

    @property
    def scheduled(self) -> str:  # ZSET of ids by due ms
        return f"{self.base}:scheduled"

    @property
    def retrying(self) -> str:  # ZSET of ids by due ms
        return f"{self.base}:retrying"

    @property
    def processing(self) -> str:  # ZSET of ids by claim ms
        return f"{self.base}:processing"

    @property
    def waiting(self) -> str:  # ZSET of ids outside workflows that wait for parents, by ms since
        return f"{self.base}:waiting"

    @property
    def completed(self) -> str:  # ZSET of ids by ms of their end
        return f"{self.base}:completed"

    @property
    def failed(self) -> str:  # ZSET of ids by ms of their end
        return f"{self.base}:failed"

    @property
    def cancelled(self) -> str:  # ZSET of ids by ms of their end
        return f"{self.base}:cancelled"

    @property
    def pauses(self) -> str:  # HASH: limit keys and s:<share> that are paused -> "<ms> <who>"
        return f"{self.base}:pauses"

    @property
    def pause_history(self) -> str:  # STREAM of at, paused (1 or 0), key and by: the newest pauses
        return f"{self.base}:pause_history"

    @property
    def deleted(self) -> str:  # ZSET of deleted ids whose events the mirror has not read, by end ms
        return f"{self.base}:deleted"

    @property
    def wake(self) -> str:  # LIST of at most one contentless token
        return f"{self.base}:wake"

    @property
    def meta(self) -> str:  # HASH: paused, paused_by, counters
        return f"{self.base}:meta"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one shard."""

    prefix: str = DEFAULT_PREFIX
    shard: int = 0
    is_on_cluster: bool = False
    base: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", f"{self.prefix}:{{{tag(self.shard)}}}:")

    def queue(self, name: str) -> QueueKeys:
        return QueueKeys(f"{self.base}q:{name}")

    def job(self, job_id: str) -> str:  # HASH: the job
        return f"{self.base}job:{job_id}"

    def child_processing(self, child: str) -> str:  # LIST of "<call>:<id>" that a child holds
        return f"{self.base}child:{child}:processing"

    def resent(self, child: str) -> str:  # STRING: number of the last call that it sent again
        return f"{self.base}child:{child}:resent"

    def child_wake(self, child: str) -> str:  # LIST of tokens that end this child's own wait
        return f"{self.base}child:{child}:wake"

    @property
    def meta(self) -> str:
        """HASH: shards, leader, leader_until_ms; of heartbeats: run_id, beat_ms, steady_ms,
        reached_ms; of the mirror: incarnation, mirror_position; of schedules:
        schedule_set, the set whose schedules are defined; of the stream: events, how many
        were ever written."""
        return f"{self.base}meta"

    @property
    def workers(self) -> str:  # ZSET: child -> lease deadline ms
        return f"{self.base}workers"

    def worker(self, worker: str) -> str:  # STRING: what it says of itself (core/worker_data.py)
        return f"{self.base}worker:{worker}"

    def worker_order(self, worker: str) -> str:  # STRING: "<ms> <order>", what it was told last
        return f"{self.base}worker:{worker}:order"

    @property
    def serving(self) -> str:  # ZSET: queue -> ms until which some worker serves it
        return f"{self.base}serving"

    @property
    def events(self) -> str:  # STREAM: every transition; an entry has those of one script
        return f"{self.base}events"

    @property
    def trim_index(self) -> str:  # LIST of "<entry> <events before it>": where to trim
        return f"{self.base}events:milestones"

    @property
    def pending_writes(self) -> str:  # LIST of what scripts left for later: "<what>:<of which>"
        return f"{self.base}flows"

    @property
    def workflows(self) -> str:  # ZSET: workflow -> ms when it is cleaned up
        return f"{self.base}workflows"

    def workflow(self, workflow_id: str) -> str:  # HASH: counts, state, which parents had results
        return f"{self.base}workflow:{workflow_id}"

    def workflow_held(self, workflow_id: str) -> str:  # LIST of ids held back by a pause or failure
        return f"{self.base}workflow:{workflow_id}:held"

    def dependants(self, job_id: str) -> str:  # LIST of names that wait for a job, when many do
        return f"{self.base}job:{job_id}:then"

    def gather(self, key: str) -> str:  # HASH: listener -> result as JSON, and queryDoneCount
        return f"{self.base}gather:{key}"

    def gather_plan(self, key: str) -> str:  # HASH: what a gather waits for, and what it enqueues
        return f"{self.base}gather:{key}:plan"

    @property
    def gathers(self) -> str:  # ZSET: key of a gather -> ms when it is looked at next
        return f"{self.base}gathers"

    @property
    def closed_gathers(self) -> str:  # SET of keys of gathers whose files are to be deleted
        return f"{self.base}gathers:closed"

    def followers(self, job_id: str) -> str:  # ZSET: ids outside its workflow that wait for a job
        return f"{self.base}job:{job_id}:followers"

    def steps(self, job_id: str) -> str:  # HASH: what an unfinished job remembers (steps.lua)
        return f"{self.base}steps:{job_id}"

    def event(self, name: str) -> str:  # STRING: payload of an event that has come
        return f"{self.base}event:{name}"

    def awaiting(self, name: str) -> str:  # ZSET: ids of jobs that wait for an event, by ms since
        return f"{self.base}awaiting:{name}"

    def waits(self, kind: str) -> str:  # ZSET: jobs parked for an event, approval or sleep, by ms
        return f"{self.base}waits:{kind}"

    def index(self, entry: str) -> str:  # SET of ids of unfinished jobs that share a property
        return f"{self.base}index:{entry}"

    def unique(self, key: str) -> str:  # STRING: the id of the job that has a unique key
        return f"{self.base}unique:{key}"

    @property
    def uniques(self) -> str:  # ZSET: unique key -> ms when it was taken
        return f"{self.base}uniques"

    @property
    def unique_lifetimes(self) -> str:  # ZSET: unique key that lasts for a time of its own -> end
        return f"{self.base}uniques:until"

    @property
    def schedules(
        self,
    ) -> str:  # ZSET: schedule -> ms of its next due time, inf if none
        return f"{self.base}schedules"

    def schedule(self, name: str) -> str:  # HASH: its definition and its state (schedule.lua)
        return f"{self.base}schedule:{name}"

    @property
    def schedule_sets(self) -> str:  # ZSET: digest of the schedules some code has -> ms first seen
        return f"{self.base}schedule_sets"

    @property
    def schedule_sets_alive(self) -> str:  # ZSET: digest -> ms until which its code is known to run
        return f"{self.base}schedule_sets:alive"

    @property
    def continuations(self) -> str:  # HASH: token -> what remains of a clear or requeue
        return f"{self.base}continuations"

    @property
    def outbox(self) -> str:  # ZSET of ids that may have outbox rows, by ms when accepted
        return f"{self.base}outbox"

    @property
    def result_files(self) -> str:  # HASH: name of a file with a large result -> job
        return f"{self.base}result_files"

    @property
    def queues(self) -> str:  # SET of queues that ever had a job, or were in QUEUES
        return f"{self.base}queues"

    @property
    def limits(self) -> str:  # HASH: the numbers of limits and shares
        return f"{self.base}limits"

    @property
    def slots(self) -> str:  # ZSET of "<limit key> <job id>" of processing jobs, all scores 0
        return f"{self.base}slots"

    @property
    def waiting_limits(self) -> str:  # ZSET of "<limit key> <queue>" with parked lanes, scores 0
        return f"{self.base}limits:waiting"

    @property
    def waiting_chunks(self) -> str:  # the same of lanes that wait to be full or are paused
        return f"{self.base}chunks:waiting"

    @property
    def due_limits(self) -> str:  # ZSET: rate with parked lanes -> ms when it allows again
        return f"{self.base}limits:due"

    @property
    def rates(self) -> str:  # ZSET of rates whose bucket may not be full, all scores 0
        return f"{self.base}limits:rates"

    @property
    def changed_limits(self) -> str:  # HASH: limit -> where calling its parked lanes goes on
        return f"{self.base}limits:changed"

    @property
    def limit_passes(self) -> str:  # HASH: "<limit key> <queue>" -> pass of the last called lane
        return f"{self.base}limits:passes"

    def tat(self, limit_key: str) -> str:  # STRING: when a rate's bucket is full again, in us
        return f"{self.base}limit:{limit_key}:tat"

    @property
    def timer(self) -> str:  # LIST of at most one token: a job is due sooner than the timer knows
        return f"{self.base}timer"

    @property
    def control(self) -> str:  # CHANNEL: "cancel <child> <job> <lease>", "order <worker> <ms> ..."
        return f"{self.base}control"

    @property
    def status_channel(self) -> str:  # CHANNEL: every transition as JSON
        if self.is_on_cluster:  # a sharded channel (events.lua)
            return f"{self.base}job_status"
        return "job_status" if self.prefix == DEFAULT_PREFIX else f"{self.prefix}:job_status"

    @property
    def workflow_channel(self) -> str:  # CHANNEL: every transition of a workflow as JSON
        return f"{self.status_channel}:workflows"

    def done(self, job_id: str) -> str:  # CHANNEL: the final status of a watched job
        return f"{self.base}done:{job_id}"
