"""A job as it stands in Redis: the frozen record and its codec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .codec import decode_payload, dumps, loads, stored_name
from .exceptions import CorruptJob
from .redaction import OPTION, redact
from .states import Status
from .tags import tags_in

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
    result: Any = None
    result_file: str = ""  # where the result is kept, when it is too large for Redis
    error: JobError | None = None
    reason: str = ""  # a JobReason: why it has failed, or was cancelled by nobody
    progress: Progress | None = None
    enqueued_ms: int | None = None
    due_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    cancel_ms: int | None = None


def decode_job(job_id: str, raw: Mapping[str, str]) -> JobData:
    """A job's hash as JobData. Raises CorruptJob naming the id and what is wrong with its hash."""
    try:
        version = int(raw.get("v", VERSION))
        if version > VERSION:
            raise CorruptJob(
                f"job {job_id} was written by a newer version of django_redisqueue "
                f"(format {version}, this one reads {VERSION}); upgrade this process"
            )
        args, kwargs = decode_payload(raw["payload"])
        options = _mapping(raw["options"]) if "options" in raw else {}
        if OPTION in options:
            args, kwargs = redact(args, kwargs, options[OPTION])
        return JobData(
            id=job_id,
            task=raw["task"],
            status=Status(raw["status"]),
            queue=raw.get("queue", "default"),
            args=tuple(args),
            kwargs=kwargs,
            options=options,
            tags=tags_in(options),
            result=loads(raw["result"]) if "result" in raw else None,
            result_file=stored_name(raw.get("result", "")),
            error=decode_error(raw["error"], raw.get("reason", "")) if "error" in raw else None,
            reason=raw.get("reason", ""),
            progress=Progress(**_mapping(raw["progress"])) if "progress" in raw else None,
            child=raw.get("child", ""),
            **_numbers(with_unsaid(raw)),
        )
    except KeyError as error:
        raise CorruptJob(f"the hash of job {job_id} has no field {error}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptJob(f"the hash of job {job_id} can not be read: {error}") from None


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
_INSTANTS = ("enqueued_ms", "due_ms", "started_ms", "finished_ms", "cancel_ms")


def _numbers(raw: Mapping[str, str]) -> dict[str, Any]:
    return {name: int(raw[name]) for name in _COUNTS + _INSTANTS if name in raw}


def encode_error(kind: str, message: str, traceback: str, limit: int) -> str:
    """An error as JSON of at most ``limit`` bytes; the traceback loses its middle first."""
    message = _printable(message)
    traceback = _printable(traceback)
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
        return JobError(raw["type"], raw["message"], raw.get("traceback", ""), reason)
    except KeyError as error:
        raise ValueError(f"its error has no {error}") from None


def _shorten(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    head, tail = room // 3, room - room // 3
    return f"{text[:head]}\n... {len(text) - room} characters left out ...\n{text[-tail:]}"


def _printable(text: str) -> str:
    """Text that UTF-8 can carry: an error message may hold lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()
