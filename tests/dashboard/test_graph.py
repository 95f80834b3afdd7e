"""The drawing of a graph: layers, boxes shared by similar jobs, and graphs that are too large."""

from __future__ import annotations

import random

import pytest

from django_redisqueue.core.records import WorkflowNode
from django_redisqueue.dashboard import graph
from django_redisqueue.dashboard.graph import Drawing, draw, layers_of


def node(number: int, *after: int, status: str = "queued", task: str = "app.work") -> WorkflowNode:
    return WorkflowNode(number, status, task, after)


def drawn(nodes: list[WorkflowNode]) -> Drawing:
    found = draw(nodes, {}, is_unfolded=True)
    assert found is not None
    return found


def test_a_job_is_to_the_right_of_all_its_parents() -> None:
    """However long the paths are: the longest counts."""
    layers = layers_of({0: [], 1: [0], 2: [1], 3: [0, 2], 4: []})
    assert layers == {0: 0, 1: 1, 2: 2, 3: 3, 4: 0}


@pytest.mark.parametrize("seed", range(20))
def test_any_graph_has_its_edges_from_left_to_right(seed: int) -> None:
    rng = random.Random(seed)
    nodes = [node(n, *rng.sample(range(n), min(n, rng.randrange(4)))) for n in range(60)]
    found = drawn(nodes)
    x = {box.number: box.x for box in found.boxes}
    for one in nodes:
        assert all(x[parent] < x[one.number] for parent in one.after)
    places = [(box.x, box.y) for box in found.boxes]
    assert len(set(places)) == len(nodes), "no box hides another"
    assert max(x for x, _ in places) + graph.WIDTH <= found.width
    assert max(y for _, y in places) + graph.HEIGHT <= found.height
    assert len(found.edges) == sum(len(one.after) for one in nodes)


def test_a_deep_chain_needs_no_stack() -> None:
    layers = layers_of({n: [n - 1] if n else [] for n in range(5000)})
    assert layers[4999] == 4999


def test_a_cycle_in_corrupt_data_is_drawn() -> None:
    assert layers_of({0: [], 1: [2], 2: [1], 3: [0]}) == {0: 0, 1: 0, 2: 0, 3: 1}
    assert len(drawn([node(0, 1), node(1, 0), node(2, 77)]).boxes) == 3


def test_a_box_is_close_to_its_parents() -> None:
    nodes = [node(n) for n in range(4)] + [node(4, 3), node(5, 2), node(6, 1), node(7, 0)]
    y = {box.number: box.y for box in drawn(nodes).boxes}
    assert [y[7], y[6], y[5], y[4]] == [y[0], y[1], y[2], y[3]]


def test_many_similar_jobs_share_a_box() -> None:
    wide = [node(n, 0, status="completed" if n <= 100 else "queued") for n in range(1, 301)]
    nodes = [node(0, status="completed"), *wide, node(301, *range(1, 301), task="app.end")]
    found = drawn(nodes)
    assert found.is_folded
    counts = sorted((box.count, box.status, box.label) for box in found.boxes)
    assert counts == [
        (1, "completed", "work"), (1, "queued", "end"),
        (100, "completed", "work"), (200, "queued", "work"),
    ]  # fmt: skip
    assert len(found.edges) == 4
    assert {box.detail for box in found.boxes if box.count > 1} == {
        "100 × completed", "200 × queued",
    }  # fmt: skip


def test_jobs_behind_different_boxes_do_not_share_one() -> None:
    left = [node(n, 0) for n in range(2, 152)]
    right = [node(n, 1) for n in range(152, 302)]
    nodes = [node(0, task="app.a"), node(1, task="app.b"), *left, *right]
    assert sorted(box.count for box in drawn(nodes).boxes) == [1, 1, 150, 150]


def test_up_to_two_hundred_jobs_have_separate_boxes() -> None:
    assert not drawn([node(n) for n in range(200)]).is_folded
    assert drawn([node(n) for n in range(201)]).is_folded


def test_few_jobs_with_too_many_edges_are_folded_too() -> None:
    nodes = [node(n) for n in range(50)] + [node(n, *range(50)) for n in range(50, 100)]
    found = drawn(nodes)
    assert found.is_folded
    assert len(found.boxes) == 2


def test_a_graph_that_is_too_large_is_not_drawn() -> None:
    assert (
        draw([node(n, *([n - 1] if n else [])) for n in range(500)], {}, is_unfolded=True) is None
    )
    assert draw([], {}, is_unfolded=True) is None


def test_a_box_names_its_job_in_words() -> None:
    long = "app.tasks." + "x" * 40
    (box,) = drawn([node(7, status="failed", task=long)]).boxes
    assert (box.label, box.name) == ("x" * 23 + "…", ".7")
    assert box.title == f"Job 7: {long}, failed"
    (box,) = drawn([node(7, status="unknown", task="")]).boxes
    assert (box.label, box.name) == ("job 7", "")
    assert box.title == "Job 7: unknown task, unknown"
