"""The drawing of a workflow's graph, from left to right: each job is to the right of its parents.

Up to SINGLE jobs have a box each, unless FAN_OUT or more are alike (same task, status and layer,
with parents in the same boxes); these share one. In larger graphs, all jobs that are alike share a
box. Graphs with too many boxes are not drawn.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..core import formatting
from ..core.records import WorkflowNode

SINGLE = 200  # jobs that have a box each
FAN_OUT = 12  # this many jobs that are alike share a box
BOXES = 400  # per drawing
EDGES = 1500
WIDTH, HEIGHT, ACROSS, BETWEEN, EDGE = 184, 58, 64, 14, 8  # px
LABEL = 24  # characters that fit into a box

Parents = Mapping[int, Sequence[int]]
Detail = tuple[str, str, int | None]  # a job's arguments, duration, and progress in percent
NO_DETAIL: Detail = ("", "", None)


@dataclass(frozen=True, slots=True)
class Box:
    """One job, or ``count`` jobs that are alike; ``number`` is that of the first. Boxes of several
    jobs have no detail."""

    number: int
    count: int
    task: str
    status: str
    x: int
    y: int
    argument: str
    duration: str
    percent: int | None

    @property
    def short_argument(self) -> str:
        return formatting.shorten(self.argument, LABEL + 4)

    @property
    def done(self) -> int:
        """The progress in px."""
        return WIDTH * (self.percent or 0) // 100

    @property
    def name(self) -> str:
        """The end of the job's id; '' for several jobs, or one that is no longer known."""
        return f".{self.number}" if self.count == 1 and self.task else ""

    @property
    def label(self) -> str:
        """The last part of the task's name."""
        name = self.task.rpartition(".")[2] or f"job {self.number}"
        return formatting.shorten(name, LABEL)

    @property
    def title(self) -> str:
        who = formatting.jobs(self.count) if self.count > 1 else f"Job {self.number}"
        parts = (self.task or "unknown task", self.status, self.argument, self.duration)
        return f"{who}: {', '.join(filter(None, parts))}"

    @property
    def detail(self) -> str:
        return f"{formatting.number(self.count)} × {self.status}" if self.count > 1 else self.status


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes and the SVG paths of the edges. Sizes are in px."""

    boxes: Sequence[Box]
    edges: Sequence[str]
    width: int
    height: int
    is_folded: bool
    box_width: int = WIDTH
    box_height: int = HEIGHT


def draw(
    nodes: Sequence[WorkflowNode], about: Mapping[int, Detail], *, is_unfolded: bool
) -> Drawing | None:
    """The drawing, or None if there is nothing or too much to draw. ``about``: details of jobs by
    number; ``is_unfolded``: jobs that are alike have a box each as well, unless they are too many.
    """
    known = {node.number for node in nodes}
    parents = {node.number: [n for n in node.after if n in known] for node in nodes}
    layers = layers_of(parents)
    fits = len(nodes) <= SINGLE and sum(map(len, parents.values())) <= EDGES
    groups = _groups(nodes, parents, layers, FAN_OUT if fits else 2)
    if fits and is_unfolded:
        groups = {n: n for n in parents}
    members: dict[int, list[WorkflowNode]] = defaultdict(list)
    for node in nodes:
        members[groups[node.number]].append(node)
    edges = {
        (groups[parent], groups[child]) for child, found in parents.items() for parent in found
    }
    if not members or len(members) > BOXES or len(edges) > EDGES:
        return None
    places = _place({group: layers[group] for group in members}, edges)
    return Drawing(
        boxes=[_box(found, places[group], about) for group, found in members.items()],
        edges=[_path(places[parent], places[child]) for parent, child in sorted(edges)],
        width=max(x for x, _ in places.values()) + WIDTH + EDGE,
        height=max(y for _, y in places.values()) + HEIGHT + EDGE,
        is_folded=len(members) < len(nodes),
    )


def _box(jobs: Sequence[WorkflowNode], place: tuple[int, int], about: Mapping[int, Detail]) -> Box:
    first = jobs[0]
    x, y = place
    detail = about.get(first.number, NO_DETAIL) if len(jobs) == 1 else NO_DETAIL
    return Box(first.number, len(jobs), first.task, first.status, x, y, *detail)


def layers_of(parents: Parents) -> dict[int, int]:
    """The longest path to each job; 0 in and after a cycle, which only corrupt data can have."""
    layers = dict.fromkeys(parents, 0)
    sorter = TopologicalSorter(parents)
    with suppress(CycleError):  # the jobs before the cycle are still sorted
        sorter.prepare()
    while ready := sorter.get_ready():
        for n in ready:
            layers[n] = max((layers[parent] + 1 for parent in parents[n]), default=0)
        sorter.done(*ready)
    return layers


def _groups(
    nodes: Sequence[WorkflowNode], parents: Parents, layers: Mapping[int, int], least: int
) -> dict[int, int]:
    """The group of each job: the number of the first job like it. Fewer than ``least`` jobs
    that are alike are in groups of their own."""
    firsts: dict[tuple[Any, ...], int] = {}
    groups: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: (layers[node.number], node.number)):
        parent_groups = frozenset(groups.get(parent, parent) for parent in parents[node.number])
        key = (layers[node.number], node.task, node.status, parent_groups)
        groups[node.number] = firsts.setdefault(key, node.number)
    sizes = Counter(groups.values())
    return {n: group if sizes[group] >= least else n for n, group in groups.items()}


def _place(
    layers: Mapping[int, int], edges: Iterable[tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """The position of each box: in the column of its layer, near its parents."""
    columns: dict[int, list[int]] = defaultdict(list)
    for group, layer in sorted(layers.items()):
        columns[layer].append(group)
    parents_of: dict[int, list[int]] = defaultdict(list)
    for parent, child in edges:
        parents_of[child].append(parent)
    tallest = max(map(len, columns.values()))
    rows: dict[int, float] = {}
    places = {}
    for layer in sorted(columns):
        column = sorted(columns[layer], key=lambda group: (_middle(parents_of[group], rows), group))
        top = (tallest - len(column)) / 2
        for at, group in enumerate(column):
            rows[group] = top + at
            y = EDGE + round(rows[group] * (HEIGHT + BETWEEN))
            places[group] = (EDGE + layer * (WIDTH + ACROSS), y)
    return places


def _middle(parents: Sequence[int], rows: Mapping[int, float]) -> float:
    known = [rows[parent] for parent in parents if parent in rows]
    return sum(known) / len(known) if known else 0.0


def _path(parent: tuple[int, int], child: tuple[int, int]) -> str:
    """A curve from the right side of one box to the left side of another."""
    x1, y1, x2, y2 = parent[0] + WIDTH, parent[1] + HEIGHT // 2, child[0], child[1] + HEIGHT // 2
    bend = max(ACROSS // 2, (x2 - x1) // 2)
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
