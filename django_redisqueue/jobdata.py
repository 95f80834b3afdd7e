"""A job as it stands in Redis: the frozen record and its codec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .bounds import is_number
from .codec import decode_payload, dumps, loads, stored_name
from .exceptions import CorruptJob
from .redaction import OPTION, redact
from .states import Status
from .tags import tags_in
from .texts import harmless, printable

VERSION = 1  # of the hash; a field `v` is stored only when it is higher


@dataclass(slots=True)
class NewJob:
    """A job on its way into Redis; ``when`` is '' (now), '+<ms>' from now, or an instant in ms.

    Not frozen: that takes three times as long to make, and this is made for every job.
    """

    id: str
    queue: str
    task: str
    payload: str = field(repr=False)
    options: str = ""
    priority: int = 0
    when: str = ""
    audit: str = ""
    after: str = ""  # an OnParentFailure and the ids of those it waits for, joined by blanks
    stored: bool = False  # it has a row in an outbox: Redis is to remember its id until that goes

    @property
    def weight(self) -> int:
        """How many jobs a script touches to make it: itself and its parents."""
        return 1 + self.after.count(" ")


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed, as text only: never turned back into an exception class."""

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
    """Everything Redis knows of one job, its arguments as they may be shown: those that the task
    redacts are replaced. Instants are ms since the epoch, by Redis's clock."""

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
    generation: int = 0  # requeues by hand
    lease: int = 0
    seq: int = 1
    child: str = ""
    ran: tuple[str, ...] = ()  # the children of earlier runs, the first ones of many
    result: Any = None
    result_file: str = ""  # where the result is kept, when it is too large for Redis
    error: JobError | None = None
    reason: str = ""  # a JobReason: why it has failed, or was cancelled by nobody
    progress: Progress | None = None
    enqueued_ms: int | None = None
    due_ms: int | None = None
    first_ms: int | None = None  # when the first run started, if there were several
    started_ms: int | None = None
    finished_ms: int | None = None
    cancel_ms: int | None = None
    #: fields of its hash that cannot be read, with the reason; only in the ``known`` of an error
    unreadable: Mapping[str, str] = field(default_factory=dict)


def decode_job(job_id: str, raw: Mapping[str, str]) -> JobData:
    """A job's hash as JobData. Raises CorruptJob, and nothing else, naming the id and what is wrong
    with its hash; where only some fields are, its ``known`` is the job without them."""
    try:
        version = int(raw.get("v", VERSION))
        if version > VERSION:
            raise CorruptJob(
                f"job {job_id} was written by a newer version of django_redisqueue "
                f"(format {version}, this one reads {VERSION}); upgrade this process"
            )
        task, status = printable(raw["task"]), Status(raw["status"])
        if not task:
            raise ValueError("it names no task")
    except KeyError as error:
        raise CorruptJob(f"the hash of job {job_id} has no field {error}") from None
    except ValueError as error:
        raise CorruptJob(f"the hash of job {job_id} cannot be read: {_why(error)}") from None
    bodies = read_bodies(raw, payload="payload")
    said = with_unsaid(raw)
    numbers = {name: bodies.read(said, name, decode_number) for name in _COUNTS}
    numbers |= {name: bodies.read(said, name, decode_instant) for name in _INSTANTS}
    job = JobData(
        id=job_id,
        task=task,
        status=status,
        queue=printable(raw.get("queue", "default")),
        reason=printable(raw.get("reason", "")),
        child=printable(raw.get("child", "")),
        ran=tuple(printable(raw.get("ran", "")).split()),
        unreadable=bodies.unreadable,
        **bodies.fields,
        **{name: number for name, number in numbers.items() if number is not None},
    )
    if bodies.unreadable:
        raise CorruptJob(f"the hash of job {job_id} cannot be read: {bodies.problem}", job)
    return job


class Bodies:
    """What is read of one job's JSON, wherever it is stored: ``fields`` of JobData, and why others
    could not be read, by their names where they are stored."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.unreadable: dict[str, str] = {}

    def read(self, raw: Mapping[str, str], name: str, decode: Callable[[str], Any]) -> Any:
        """The decoded field; None for one that is not there or cannot be read. Never raises."""
        if name not in raw:
            return None
        try:
            return decode(raw[name])
        except (ValueError, TypeError) as error:
            self.unreadable[name] = _why(error)
            return None

    @property
    def problem(self) -> str:
        return "; ".join(f"{name}: {why}" for name, why in self.unreadable.items())


def read_bodies(raw: Mapping[str, str], payload: str = "") -> Bodies:
    """Whatever can be read of a job's JSON texts. Nothing of it raises. With ``payload`` the text
    of that name must be there."""
    found = Bodies()
    fields = found.fields
    options = found.read(raw, "options", decode_options)
    if options is not None:
        fields["options"], fields["tags"] = options
    if "options" in found.unreadable:
        found.unreadable["payload"] = "its options say what may be shown, and they are unreadable"
    elif payload and payload not in raw:
        found.unreadable[payload] = f"it has no field {payload!r}"
    else:
        marks = fields.get("options", {}).get(OPTION)
        arguments = found.read(raw, "payload", lambda text: _arguments(text, marks))
        if arguments is not None:
            fields["args"], fields["kwargs"] = arguments
    fields["result"] = found.read(raw, "result", loads)
    fields["result_file"] = found.read(raw, "result", stored_name) or ""
    reason = printable(raw.get("reason", ""))
    fields["error"] = found.read(raw, "error", lambda text: decode_error(text, reason))
    fields["progress"] = found.read(raw, "progress", decode_progress)
    return found


def _arguments(text: str, marks: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = decode_payload(text)
    if marks is not None:
        args, kwargs = redact(args, kwargs, marks)
    return tuple(args), kwargs


def _why(error: Exception) -> str:
    """In one short line."""
    return harmless(error)


_UNSAID = {
    "processing": {"lease": "1", "seq": "2"},
    "completed": {"lease": "1", "seq": "3"},
}


def with_unsaid(raw: Mapping[str, str]) -> Mapping[str, str]:
    """A job's hash with what its status tells of a plain run (include/unsaid.lua)."""
    return raw if "seq" in raw else {**_UNSAID.get(raw["status"], {}), **raw}


def _mapping(text: str) -> dict[str, Any]:
    value = loads(text)
    if type(value) is not dict:
        raise ValueError(f"{text[:40]!r} is not a JSON object")
    return value


_COUNTS = ("priority", "attempts", "recoveries", "generation", "lease", "seq")
_INSTANTS = ("enqueued_ms", "due_ms", "first_ms", "started_ms", "finished_ms", "cancel_ms")
_FAR = 2**63


def decode_number(text: str) -> int:
    """A whole number of 64 bits. Raises ValueError."""
    number = int(text)
    if not -_FAR <= number < _FAR:
        raise ValueError("the number is beyond 64 bits")
    return number


def decode_instant(text: str) -> int:
    """An instant in ms, not further away than 64 bits go. Raises ValueError."""
    return min(max(int(text), -_FAR), _FAR)


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
    """The stored progress. Raises ValueError or TypeError when it is none."""
    found = Progress(**_mapping(text))
    for number in (found.done, found.total):
        if not is_number(number, -_FAR, _FAR):
            raise ValueError("its done and total are not numbers")
    if not isinstance(found.note, str):
        raise ValueError("its note is not a text")
    return found


def encode_error(kind: str, message: str, traceback: str, limit: int) -> str:
    """An error as JSON of at most ``limit`` bytes; the traceback loses its middle first."""
    message = printable(message)
    traceback = printable(traceback)
    text = dumps({"type": kind, "message": message, "traceback": traceback})
    if len(text.encode()) <= limit:
        return text
    # Halve until it fits: JSON escapes make the encoded size unpredictable from the text's length.
    room = limit
    while True:
        room //= 2
        text = dumps(
            {
                "type": kind[:100],
                "message": _shorten(message, room // 3),
                "traceback": _shorten(traceback, room),
            }
        )
        if len(text.encode()) <= limit or room < 8:
            return text


def decode_error(text: str, reason: str = "") -> JobError:
    """The stored error. Raises ValueError or TypeError when it is none."""
    raw = _mapping(text)
    try:
        found = JobError(raw["type"], raw["message"], raw.get("traceback", ""), reason)
    except KeyError as error:
        raise ValueError(f"its error has no {error}") from None
    if not all(isinstance(each, str) for each in (found.type, found.message, found.traceback)):
        raise ValueError("its error is not made of texts")
    return found


def _shorten(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    head, tail = room // 3, room - room // 3
    return f"{text[:head]}\n... {len(text) - room} characters left out ...\n{text[-tail:]}"
