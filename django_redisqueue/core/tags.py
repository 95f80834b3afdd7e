"""Tags, by which an application finds its jobs.

A job's options store them as a flat list: scripts do not decode JSON, and in a list a tag's name
cannot be mistaken for an option's key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from ..exceptions import InvalidName, InvalidOption, short_repr
from .ids import check_tag_name

OPTION = "tags"  # in a job's options; index.lua looks for both
INDEX = "index"
MAX_TAGS, MAX_VALUE = 10, 100


def check_tags(value: object) -> dict[str, str]:
    """Check up to 10 names with texts of 1 to 100 printable characters. Raises InvalidOption."""
    if not isinstance(value, Mapping):
        raise InvalidOption(
            f'tags must be a dict such as {{"tenant": "42"}}, not {short_repr(value)}'
        )
    if len(value) > MAX_TAGS:
        raise InvalidOption(f"a job has at most {MAX_TAGS} tags, not {len(value)}")
    for name, text in value.items():
        try:
            check_tag_name(name)
        except InvalidName as error:
            raise InvalidOption(f"tags: {error}") from None
        if not isinstance(text, str):
            given = short_repr(text)
            raise InvalidOption(f"the tag {name!r} must be text, not {given}; pass '{given}'")
        if not (0 < len(text) <= MAX_VALUE and text.isprintable()):
            raise InvalidOption(
                f"the tag {name!r} must have 1 to {MAX_VALUE} printable characters, "
                f"not {short_repr(text)}"
            )
    return dict(sorted(value.items()))


def flatten_tags(tags: Mapping[str, str]) -> list[str]:
    """The tags in the form that a job's options store."""
    return [part for pair in tags.items() for part in pair]


def tags_in(options: Mapping[str, object]) -> dict[str, str]:
    """The tags in a job's options. Raises ValueError."""
    parts = options.get(OPTION, ())
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"its tags are {short_repr(parts)}, not alternating names and texts")
    return dict(zip(parts[::2], parts[1::2], strict=True))


def properties(task: str, workflow: str, tags: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The properties that can be INDEXED, with their values unless empty."""
    if task:
        yield "task", task
    if workflow:
        yield "workflow", workflow
    for name, text in tags.items():
        yield f"tags.{name}", text


def index_entry(name: str, value: str) -> str:
    """The name of an index set, in its key and in a job's options: a property and its value,
    without spaces and quotes."""
    return f"{name}:{quote(value, safe='/:@')}"


def index_of(indexed: Sequence[str], task: str, job_id: str, tags: Mapping[str, str]) -> str:
    """The names of a job's index sets, as its options store them."""
    workflow = job_id.rpartition(".")[0] if job_id.startswith("flow_") else ""
    found = properties(task, workflow, tags)
    return " ".join(index_entry(name, value) for name, value in found if name in indexed)
