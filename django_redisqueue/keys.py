"""Every key name of the queue, with its Redis type. In Lua the same names are made in the includes
context, flows, gather_plan, continuation and index; a test compares the two.

``{n}`` is the shard number in literal braces: Redis Cluster hashes only what stands between them,
so all keys of a shard live in one slot and one script may touch them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

DEFAULT_PREFIX = "job_queue"


def index_entry(name: str, value: str) -> str:
    """How an index set is named, and a job's options name it: a property and its value, without
    blanks and quotes."""
    return f"{name}:{quote(value, safe='/:@')}"


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue."""

    base: str

    @property
    def queued(self) -> str:  # LIST of ids of priority 0: LPUSH in, RPOP out
        return self.base

    @property
    def priority(self) -> str:  # ZSET of queued ids of another priority, or aside (claim_aside)
        return f"{self.base}:priority"

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
    def waiting(self) -> str:  # ZSET of ids of no workflow that wait for others, by ms since when
        return f"{self.base}:waiting"

    @property
    def completed(self) -> str:  # ZSET of ids by the instant of their end
        return f"{self.base}:completed"

    @property
    def failed(self) -> str:  # ZSET of ids by the instant of their end
        return f"{self.base}:failed"

    @property
    def cancelled(self) -> str:  # ZSET of ids by the instant of their end
        return f"{self.base}:cancelled"

    @property
    def deleted(
        self,
    ) -> str:  # ZSET of deleted ids that the mirror has yet to read of, by their end
        return f"{self.base}:deleted"

    @property
    def wake(self) -> str:  # LIST of at most one contentless token
        return f"{self.base}:wake"

    @property
    def meta(self) -> str:  # HASH: paused, counters
        return f"{self.base}:meta"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one shard."""

    prefix: str = DEFAULT_PREFIX
    shard: int = 0
    base: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", f"{self.prefix}:{{{self.shard}}}:")

    def queue(self, name: str) -> QueueKeys:
        return QueueKeys(f"{self.base}q:{name}")

    def job(self, job_id: str) -> str:  # HASH: the job
        return f"{self.base}job:{job_id}"

    def held(self, child: str) -> str:  # LIST of "<call>:<id>" that one child holds
        return f"{self.base}child:{child}:processing"

    def resent(self, child: str) -> str:  # STRING: number of the last call that it sent again
        return f"{self.base}child:{child}:resent"

    @property
    def meta(self) -> str:
        """HASH: shards, leader, leader_until_ms; of heartbeats: run_id, beat_ms, steady_ms,
        reached_ms; of the mirror: incarnation, mirror_position; of the stream: events, how many
        were ever written."""
        return f"{self.base}meta"

    @property
    def workers(self) -> str:  # ZSET: child -> lease deadline ms
        return f"{self.base}workers"

    @property
    def events(self) -> str:  # STREAM: every transition; an entry has those of one script
        return f"{self.base}events"

    @property
    def milestones(self) -> str:  # LIST of "<entry> <events before it>", by which it is trimmed
        return f"{self.base}events:milestones"

    @property
    def flows(self) -> str:  # LIST of what scripts left for later: "<what>:<of which>"
        return f"{self.base}flows"

    @property
    def workflows(self) -> str:  # ZSET: workflow -> ms when it is cleaned up
        return f"{self.base}workflows"

    def workflow(self, flow_id: str) -> str:  # HASH: counts, state, edges, parents' results
        return f"{self.base}workflow:{flow_id}"

    def flow_held(
        self, flow_id: str
    ) -> str:  # LIST of ids that a paused or failed workflow holds back
        return f"{self.base}workflow:{flow_id}:held"

    def dependants(self, job_id: str) -> str:  # LIST of names that wait for a job, when many do
        return f"{self.base}job:{job_id}:then"

    def gather(self, key: str) -> str:  # HASH: listener -> result as JSON, and queryDoneCount
        return f"{self.base}gather:{key}"

    def plan(self, key: str) -> str:  # HASH: what a gather waits for, and what follows
        return f"{self.base}gather:{key}:plan"

    @property
    def gathers(self) -> str:  # ZSET: key of a gather -> ms when it is looked at next
        return f"{self.base}gathers"

    @property
    def closed_gathers(self) -> str:  # SET of keys of gathers whose files are to be deleted
        return f"{self.base}gathers:closed"

    def followers(self, job_id: str) -> str:  # ZSET: ids outside its workflow that wait for a job
        return f"{self.base}job:{job_id}:followers"

    def index(self, entry: str) -> str:  # SET of ids of unfinished jobs that share a property
        return f"{self.base}index:{entry}"

    @property
    def continuations(self) -> str:  # HASH: token -> what a verb over many jobs has left to do
        return f"{self.base}continuations"

    @property
    def outbox(self) -> str:  # ZSET of ids that may have rows in an outbox, by ms when accepted
        return f"{self.base}outbox"

    @property
    def queues(self) -> str:  # SET of names of queues that ever had a job, or were in QUEUES
        return f"{self.base}queues"

    @property
    def timer(self) -> str:  # LIST of at most one token: a sooner due time than the timer knows
        return f"{self.base}timer"

    @property
    def control(self) -> str:  # CHANNEL: orders to supervisors, "<verb> <child> <job id> <lease>"
        return f"{self.base}control"

    @property
    def status_channel(self) -> str:  # CHANNEL: every transition as JSON
        return "job_status" if self.prefix == DEFAULT_PREFIX else f"{self.prefix}:job_status"

    @property
    def flow_channel(self) -> str:  # CHANNEL: every transition of a workflow as JSON
        return f"{self.status_channel}:workflows"

    def done(self, job_id: str) -> str:  # CHANNEL: the final status of a watched job
        return f"{self.base}done:{job_id}"
