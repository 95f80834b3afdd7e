"""The records of a job, and how they are decoded from its hash in Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..exceptions import CorruptJob
from .codec import decode_payload, dumps, loads, stored_name
from .parsing import MAX_INT64, is_number, parse_instant_ms, parse_int
from .redaction import OPTION, redact
from .statuses import FINAL, Status
from .tags import tags_in
from .text import printable, sanitize

EXPIRES = "expires"  # the option: until when the job may start, in the form of ``when``
APPROVAL = "approval:"  # begins the events of approvals
VERSION = 1  # of the hash; a field `v` is stored only when it is higher
_HAS_RUN = (Status.PROCESSING, Status.COMPLETED)  # their runs may be on the fast path
_NAMES = ("reason", "child", "unique", "lane")
_COUNTS = ("priority", "attempts", "recoveries", "generation", "lease", "seq")
_INSTANTS = (
    "enqueued_ms", "due_ms", "first_ms", "started_ms", "finished_ms", "cancel_ms", "parked_ms",
    "previous_due_ms",
)  # fmt: skip
#: The fields of a job's hash that ``decode_job`` reads.
HASH_FIELDS = (
    "v", "task", "status", "queue", "ran", "waits_for", "payload", "options", "result", "error",
    "progress", *_NAMES, *_COUNTS, *_INSTANTS,
)  # fmt: skip


class WaitKind(StrEnum):
    """What a parked job waits for."""

    EVENT = "event"
    APPROVAL = "approval"
    SLEEP = "sleep"


@dataclass(slots=True)
class NewJob:
    """A job on its way into Redis. ``when`` is '' (now), '+<ms>' (that long from now), or a time in
    ms. Not frozen, because creating a frozen dataclass takes three times as long."""

    id: str
    queue: str
    task: str
    payload: str = field(repr=False)
    options: str = ""
    priority: int = 0
    when: str = ""
    audit: str = ""
    after: str = ""  # an OnParentFailure and the ids of its parents, separated by spaces
    unique: str = ""  # its unique key, encoded
    lane: str = ""  # its limits and its share of the queue, encoded
    stored: bool = False  # it has an outbox row: Redis remembers its id until the row is deleted
    is_known: bool = False  # its id was given out before Redis had it
    owner: str = ""  # once sent: the job that has its unique key; this one is not created
    differs: bool = False  # the owner was created with the same Idempotency-Key but another body
    is_spread: bool = False  # it may go to any shard

    @property
    def is_plain(self) -> bool:
        """Whether it has a queue, a task and arguments, and nothing else."""
        return not (
            self.options or self.priority or self.when or self.audit or self.after or self.unique
            or self.lane or self.stored
        )  # fmt: skip

    @property
    def weight(self) -> int:
        """How many jobs a script touches to create it: itself and its parents."""
        return 1 + self.after.count(" ")


#: The fields of a NewJob that its signature determines.
SIGNATURE_FIELDS = (
    "task", "payload", "queue", "options", "priority", "audit", "when", "unique", "lane",
)  # fmt: skip


def instant_ms(when: str, since_ms: int) -> int:
    """A ``when`` as a time in ms; a delay counts from ``since_ms``."""
    return since_ms + int(when) if when.startswith("+") else int(when)


def fix_expiry(options: str, after: str, now_ms: int) -> str:
    """A job's options for its outbox row, with ``expires`` counted from now, not from when the row
    is sent. For a job with parents it counts from the parents' end in any case."""
    if after or f'"{EXPIRES}":"+' not in options:
        return options
    found = loads(options)
    return dumps({**found, EXPIRES: str(instant_ms(found[EXPIRES], now_ms))})


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed, as text: it never becomes an exception again."""

    type: str
    message: str
    traceback: str = ""
    reason: str = ""  # a JobReason

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running job is."""

    done: float
    total: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobData:
    """Everything Redis has about a job, with redacted arguments replaced. Times are in ms."""

    id: str
    task: str
    queue: str = "default"
    status: Status = Status.QUEUED
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    attempts: int = 0  # spent
    recoveries: int = 0
    generation: int = 0  # manual requeues
    lease: int = 0
    seq: int = 1
    child: str = ""
    ran: tuple[str, ...] = ()  # children of earlier runs; only the first ones if there were many
    result: Any = None
    result_file: str = ""  # the name of the file with a result too large for Redis
    unique: str = ""  # as in NewJob
    lane: str = ""  # as in NewJob
    error: JobError | None = None
    reason: str = ""  # a JobReason
    progress: Progress | None = None
    waits_for: str | None = None  # the event that a parked job awaits, '' if it sleeps; else None
    parked_ms: int | None = None
    enqueued_ms: int | None = None
    due_ms: int | None = None
    first_ms: int | None = None  # when the first run started, if there were several
    started_ms: int | None = None
    finished_ms: int | None = None
    cancel_ms: int | None = None
    previous_due_ms: int | None = None  # of a periodic job: the due time of the run before it
    #: unreadable fields of its hash, with the reason; only set in an error's ``known``
    unreadable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """A lookup of the newest ``limit`` jobs with these properties; an empty one matches all."""

    task: str = ""
    workflow: str = ""
    statuses: frozenset[Status] = frozenset()
    queue: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    limit: int = 100

    @property
    def is_unfinished(self) -> bool:
        """True if it matches only jobs that have not ended."""
        return bool(self.statuses) and self.statuses.isdisjoint(FINAL)

    def matches(self, job: JobData) -> bool:
        return (
            (not self.task or job.task == self.task)
            and (not self.workflow or job.id.rpartition(".")[0] == self.workflow)
            and (not self.statuses or job.status in self.statuses)
            and (not self.queue or job.queue == self.queue)
            and self.tags.items() <= job.tags.items()
        )


def decode_job(job_id: str, raw: Mapping[str, str], stored_in: str = "hash") -> JobData:
    """A job's hash as JobData. Raises only CorruptJob, which says what is wrong with the hash. If
    only some fields are unreadable, its ``known`` is the job without them."""
    try:
        version = parse_int(raw["v"]) if "v" in raw else VERSION
        if version > VERSION:
            raise CorruptJob(
                f"job {job_id} was written by a newer version of django_redisqueue "
                f"(format {version}, this one reads {VERSION}); upgrade this process"
            )
        task, status = printable(raw["task"]), Status(raw["status"])
        if not task:
            raise ValueError("it names no task")
    except KeyError as error:
        raise CorruptJob(f"the {stored_in} of job {job_id} has no field {error}") from None
    except ValueError as error:
        raise CorruptJob(
            f"the {stored_in} of job {job_id} cannot be read: {sanitize(error)}"
        ) from None
    reader = _JobReader(raw)
    fields = reader.bodies()
    fields |= {name: reader.read(name, parse_int) for name in _COUNTS}
    fields |= {name: reader.read(name, parse_instant_ms) for name in _INSTANTS}
    fields |= {name: printable(raw.get(name, "")) for name in _NAMES}
    fields["seq"] = seq_of(status, fields["seq"], "lease" in raw)
    if "lease" not in raw and status in _HAS_RUN:
        fields["lease"] = 1
    job = JobData(
        id=job_id,
        task=task,
        status=status,
        queue=printable(raw.get("queue", "default")),
        ran=tuple(printable(raw.get("ran", "")).split()),
        waits_for=_waits_for(raw, status),
        unreadable=reader.unreadable,
        **{name: value for name, value in fields.items() if value is not None},
    )
    if reader.unreadable:
        problem = "; ".join(f"{name}: {why}" for name, why in reader.unreadable.items())
        raise CorruptJob(f"the {stored_in} of job {job_id} cannot be read: {problem}", job)
    return job


class _JobReader:
    """Decodes the fields of one job's hash, and notes in ``unreadable`` why some cannot be."""

    def __init__(self, raw: Mapping[str, str]) -> None:
        self._raw = raw
        self.unreadable: dict[str, str] = {}

    def read(self, name: str, decode: Callable[[str], Any]) -> Any:
        """Decode a field; None if it is missing or unreadable."""
        if name not in self._raw:
            return None
        try:
            return decode(self._raw[name])
        except (ValueError, TypeError) as error:
            self.unreadable[name] = sanitize(error)
            return None

    def bodies(self) -> dict[str, Any]:
        """The decoded JSON, as fields of JobData."""
        options, tags = self.read("options", decode_options) or (None, None)
        args = kwargs = None
        if "options" in self.unreadable:
            self.unreadable["payload"] = (
                "the options, which say what is redacted, are unreadable, so it cannot be shown"
            )
        elif "payload" not in self._raw:
            self.unreadable["payload"] = "it has no field 'payload'"
        else:
            marks = (options or {}).get(OPTION)
            arguments = self.read("payload", lambda text: _arguments(text, marks))
            args, kwargs = arguments or (None, None)
        reason = printable(self._raw.get("reason", ""))
        return {
            "options": options, "tags": tags, "args": args, "kwargs": kwargs,
            "result": self.read("result", loads),
            "result_file": self.read("result", stored_name),
            "error": self.read("error", lambda text: decode_error(text, reason)),
            "progress": self.read("progress", decode_progress),
        }  # fmt: skip


def split_wait(job_id: str, event: str) -> tuple[WaitKind, str]:
    """What a parked job waits for, and its name, from the field ``waits_for``."""
    if not event:
        return WaitKind.SLEEP, ""
    if event.startswith(APPROVAL):
        return WaitKind.APPROVAL, event.removeprefix(f"{APPROVAL}{job_id}:")
    return WaitKind.EVENT, event


def _waits_for(raw: Mapping[str, str], status: Status) -> str | None:
    """The event that the job is currently parked for."""
    if status is not Status.SCHEDULED or "waits_for" not in raw:
        return None
    return printable(raw["waits_for"])


def _arguments(text: str, marks: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = decode_payload(text)
    if marks is not None:
        args, kwargs = redact(args, kwargs, marks)
    return tuple(args), kwargs


def seq_of(status: str, seq: int | None, has_lease: bool) -> int:
    """The number of a job's events, from the fields of its hash. Without ``lease``, a run is on the
    fast path of claim and finish, and its status implies the number (``implied_fields.lua``)."""
    if has_lease or status not in _HAS_RUN:
        return 1 if seq is None else seq
    return (2 if seq is None else seq) + (status == Status.COMPLETED)


def _mapping(text: str) -> dict[str, Any]:
    value = loads(text)
    if type(value) is not dict:
        raise ValueError(f"{text[:40]!r} is not a JSON object")
    return value


def decode_options(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A job's options, and the tags among them. Raises ValueError."""
    options = _mapping(text)
    return options, tags_in(options)


def decode_tags(text: str) -> dict[str, str]:
    """The tags of a record. Raises ValueError."""
    tags = _mapping(text)
    if not all(isinstance(value, str) for value in tags.values()):
        raise ValueError("its tags are not texts")
    return tags


def decode_progress(text: str) -> Progress:
    """Decode stored progress. Raises ValueError or TypeError."""
    found = Progress(**_mapping(text))
    for number in (found.done, found.total):
        if not is_number(number, -MAX_INT64 - 1, MAX_INT64 + 1):
            raise ValueError("its done and total are not numbers")
    if not isinstance(found.note, str):
        raise ValueError("its note is not text")
    return found


def encode_error(kind: str, message: str, traceback: str, limit: int) -> str:
    """An error as JSON of at most ``limit`` bytes, cutting the middle of its texts if necessary."""
    message, traceback = printable(message), printable(traceback)
    text = dumps({"type": kind, "message": message, "traceback": traceback})
    room = limit
    # Halve until it fits: JSON escapes make the encoded size unpredictable.
    while len(text.encode()) > limit and room >= 8:
        room //= 2
        short = {"message": _shorten(message, room // 3), "traceback": _shorten(traceback, room)}
        text = dumps({"type": kind[:100], **short})
    return text


def decode_error(text: str, reason: str = "") -> JobError:
    """Decode a stored error. Raises ValueError or TypeError."""
    raw = _mapping(text)
    try:
        found = JobError(raw["type"], raw["message"], raw.get("traceback", ""), reason)
    except KeyError as error:
        raise ValueError(f"its error has no {error}") from None
    if not all(isinstance(each, str) for each in (found.type, found.message, found.traceback)):
        raise ValueError("its error has a part that is not text")
    return found


def _shorten(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    head, tail = room // 3, room - room // 3
    return f"{text[:head]}\n... {len(text) - room} characters left out ...\n{text[-tail:]}"
