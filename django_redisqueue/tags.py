"""Tags: words an application gives a job, to find it by.

They travel in the job's options, as a flat list: a name cannot look like the key of an option to
a script, which does not decode JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .exceptions import InvalidName, InvalidOption, shown
from .ids import check_tag_name
from .keys import index_entry

OPTION = "tags"  # in a job's options; index.lua looks for both
INDEX = "index"
MAX_TAGS, MAX_VALUE = 10, 100


def check_tags(value: object) -> dict[str, str]:
    """Up to 10 names with texts of 1 to 100 printable characters. Raises InvalidOption."""
    if not isinstance(value, Mapping):
        raise InvalidOption(f'tags must be a dict such as {{"tenant": "42"}}, not {shown(value)}')
    if len(value) > MAX_TAGS:
        raise InvalidOption(f"a job has at most {MAX_TAGS} tags, not {len(value)}")
    for name, text in value.items():
        try:
            check_tag_name(name)
        except InvalidName as error:
            raise InvalidOption(f"tags: {error}") from None
        if not isinstance(text, str):
            raise InvalidOption(f"the tag {name!r} must be text, not {text!r}; pass {str(text)!r}")
        if not (0 < len(text) <= MAX_VALUE and text.isprintable()):
            raise InvalidOption(
                f"the tag {name!r} must have 1 to {MAX_VALUE} printable characters, "
                f"not {shown(text)}"
            )
    return dict(sorted(value.items()))


def flat(tags: Mapping[str, str]) -> list[str]:
    """As they stand in a job's options."""
    return [part for pair in tags.items() for part in pair]


def tags_in(options: Mapping[str, object]) -> dict[str, str]:
    """The tags that a job's options have. Raises ValueError when they are none."""
    parts = options.get(OPTION, ())
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"its tags are {shown(parts)}, not names and texts in turn")
    return dict(zip(parts[::2], parts[1::2], strict=True))


def properties(task: str, workflow: str, tags: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The properties that can be INDEXED, with their values; those that are not empty."""
    if task:
        yield "task", task
    if workflow:
        yield "workflow", workflow
    for name, text in tags.items():
        yield f"tags.{name}", text


def index_of(indexed: Sequence[str], task: str, job_id: str, tags: Mapping[str, str]) -> str:
    """The index sets that a job is in, as its options name them."""
    workflow = job_id.rpartition(".")[0] if job_id.startswith("flow_") else ""
    found = properties(task, workflow, tags)
    return " ".join(index_entry(name, value) for name, value in found if name in indexed)
