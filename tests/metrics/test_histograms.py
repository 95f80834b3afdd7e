"""Histograms of durations."""

import random

import pytest

from django_redisqueue.metrics import histograms


def test_a_bucket_contains_values_above_the_previous_bound_and_up_to_its_own() -> None:
    assert histograms.bucket(-5) == histograms.bucket(0) == histograms.bucket(1) == 0
    for place, bound in enumerate(histograms.BOUNDS):
        assert histograms.bucket(bound) == place
        assert histograms.bucket(bound + 0.5) == place + 1
    assert histograms.bucket(10**12) == len(histograms.BOUNDS)


@pytest.mark.parametrize("q", [0.5, 0.95, 0.99])
def test_a_percentile_is_off_by_at_most_a_quarter(q: float) -> None:
    choose = random.Random(4)
    durations = sorted(choose.lognormvariate(5, 2) + 5 for _ in range(5000))
    counts: list[int] = []
    for ms in durations:
        histograms.add(counts, ms)
    found = histograms.percentile(counts, q)
    assert found == pytest.approx(durations[int(q * len(durations))], rel=0.26)


def test_the_ends_of_a_histogram() -> None:
    assert histograms.percentile([], 0.5) is None
    assert histograms.percentile([0, 0], 0.5) is None
    assert histograms.percentile([4], 1) == 1
    beyond: list[int] = []
    histograms.add(beyond, 10**12)
    assert histograms.percentile(beyond, 1) == histograms.BOUNDS[-1]
    assert histograms.percentile([1], 2) == histograms.BOUNDS[-1]


def test_a_sum_counts_both_regardless_of_length() -> None:
    assert histograms.merge([1, 2, 3], [4]) == histograms.merge([4], [1, 2, 3]) == [5, 2, 3]


def test_the_text_of_a_row_can_be_read_back() -> None:
    assert histograms.encode([]) == ""
    assert histograms.decode("") == []
    assert histograms.decode(histograms.encode([0, 7, 1])) == [0, 7, 1]
    for text in ('{"a": 1}', "[1.5]", "[true]", "[-1]", f"[{2**53 + 1}]", "[", "nonsense"):
        assert histograms.decode(text) == []
        with pytest.raises(ValueError, match=r"histogram|Expecting"):
            histograms.decode_all(["[0,7]", text])
