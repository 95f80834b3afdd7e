"""When schedules are due, even where clocks change, and what happens to missed due times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from django_redisqueue.core.clock import to_period_ms
from django_redisqueue.core.ids import (
    check_job_id,
    due_ms_of,
    manual_job_id,
    new_job_id,
    periodic_job_id,
    periodic_prefix,
)
from django_redisqueue.core.schedules import (
    CATCH_UP,
    MAX_COUNTED,
    Cron,
    Every,
    Schedule,
    to_cron,
    to_every,
)
from django_redisqueue.exceptions import InvalidOption

T0 = 1_700_000_040_000  # a whole minute
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def local(due_ms: int, zone: str) -> str:
    return f"{datetime.fromtimestamp(due_ms / 1000, ZoneInfo(zone)):%Y-%m-%d %H:%M}"


# -- daylight saving

GAPS_AND_REPEATS = [
    # zone, time of day, the night in UTC, when it is due that night
    ("Europe/Berlin", "30 2", "2025-03-29T12:00", "2025-03-30 03:00"),
    ("Europe/Berlin", "30 2", "2025-10-25T12:00", "2025-10-26 02:30"),
    ("Australia/Lord_Howe", "15 2", "2025-10-04T03:00", "2025-10-05 02:30"),  # half an hour
    ("Australia/Lord_Howe", "45 1", "2025-04-05T03:00", "2025-04-06 01:45"),
    ("Pacific/Chatham", "0 3", "2025-09-27T00:00", "2025-09-28 03:45"),  # at 02:45
    ("Pacific/Chatham", "0 3", "2025-04-05T00:00", "2025-04-06 03:00"),
    ("Antarctica/Troll", "30 1", "2025-03-29T12:00", "2025-03-30 03:00"),  # two hours
    ("Antarctica/Troll", "0 2", "2025-10-25T12:00", "2025-10-26 02:00"),
    ("Africa/Cairo", "0 0", "2025-04-24T12:00", "2025-04-25 01:00"),  # at midnight
    ("Africa/Cairo", "30 23", "2025-10-30T12:00", "2025-10-30 23:30"),
]


@pytest.mark.parametrize(("zone", "time", "night", "expected"), GAPS_AND_REPEATS)
def test_a_time_of_day_runs_once_when_clocks_change(
    zone: str, time: str, night: str, expected: str
) -> None:
    cron = Cron(f"{time} * * *", timezone=zone)
    due_ms = cron.after(ms(night))
    assert due_ms is not None
    assert local(due_ms, zone) == expected
    following = cron.after(due_ms)
    assert following is not None
    assert following - due_ms > 20 * HOUR


@pytest.mark.parametrize("zone", sorted({zone for zone, *_ in GAPS_AND_REPEATS}))
def test_each_day_of_a_year_has_its_run(zone: str) -> None:
    first, last = ms("2025-01-01T12:00"), ms("2026-01-01T12:00")
    for time in ("0 0", "30 1", "15 2", "45 2", "0 3", "30 23"):
        cron = Cron(f"{time} * * *", timezone=zone)
        due = cron.between((cron.after(first) or 0), last)
        days = [local(due_ms, zone)[:10] for due_ms in due]
        assert len(days) == len(set(days)) == 365


def test_with_both_fields_of_days_either_is_enough() -> None:
    """As docs/periodic.md warns those who come from Celery."""

    def due(expression: str) -> list[str]:
        found = Cron(expression, timezone="UTC").upcoming(ms("2026-10-31T12:00"), 8)
        return [local(due_ms, "UTC")[5:10] for due_ms in found]

    assert due("0 0 1-7 * MON") == [*(f"11-0{day}" for day in range(1, 8)), "11-09"]
    assert due("0 0 * * MON#1")[:2] == ["11-02", "12-07"]


def test_the_due_times_do_not_depend_on_the_starting_point() -> None:
    """Even within a repeated hour, where the time of day is ambiguous."""
    for zone in ("Europe/Berlin", "Australia/Lord_Howe"):
        cron = Cron("*/20 1,2 * * *", timezone=zone)
        fixed = Cron("10,50 1,2 * * *", timezone=zone)
        for schedule in (cron, fixed):
            for night in ("2025-10-25T20:00", "2025-04-05T12:00"):
                due = schedule.between(schedule.after(ms(night)) or 0, ms(night) + DAY)
                assert list(due) == sorted(set(due))
                for minute in range(0, 24 * 60, 7):
                    asked = ms(night) + minute * MINUTE
                    later = [due_ms for due_ms in due if due_ms > asked]
                    if later:
                        assert schedule.after(asked) == later[0]


def test_every_does_not_drift() -> None:
    every = Every("90m")
    assert every.upcoming(ms("2025-03-30T00:10"), 3) == [
        ms("2025-03-30T01:30"), ms("2025-03-30T03:00"), ms("2025-03-30T04:30"),
    ]  # fmt: skip
    assert every.after(ms("2025-03-30T01:30")) == ms("2025-03-30T03:00")


# -- missed due times


@pytest.mark.parametrize(
    ("misfire", "run", "missed"),
    [("once", [60], 12), ("skip", [60], 12), ("all", list(range(0, 65, 5)), 0)],
)
def test_after_an_hour_without_workers(misfire: str, run: list[int], missed: int) -> None:
    cron = Cron("*/5 * * * *", misfire=misfire)
    cursor = cron.after(T0) or 0
    for seconds in (1, 59):
        due = cron.due_runs(cursor, cursor + HOUR + seconds * 1000)
        assert list(due.run_ms) == [cursor + minute * MINUTE for minute in run]
        assert (due.next_ms, due.missed) == (cursor + 65 * MINUTE, missed)


def test_skip_omits_late_due_times() -> None:
    cron = Cron("*/5 * * * *", misfire="skip")
    cursor = cron.after(T0) or 0
    due = cron.due_runs(cursor, cursor + HOUR + 2 * MINUTE)
    assert (list(due.run_ms), due.missed) == ([], 13)
    assert due.next_ms == cursor + HOUR + 5 * MINUTE


def test_all_is_capped() -> None:
    due = Every("1s", misfire="all").due_runs(T0, T0 + DAY)
    assert len(due.run_ms) == CATCH_UP
    assert due.run_ms[-1] == T0 + DAY
    assert due.missed == 86_401 - CATCH_UP


@pytest.mark.parametrize("misfire", ["once", "skip", "all"])
def test_up_to_a_minute_late_is_on_time(misfire: str) -> None:
    every = Every(10, misfire=misfire)
    due = every.due_runs(T0, T0 + MINUTE)
    assert list(due.run_ms) == [T0 + second * 1000 for second in range(0, 70, 10)]
    assert due.missed == 0


def test_due_times_of_missed_years_are_not_counted_one_by_one() -> None:
    due = Every("1s").due_runs(1000, T0)
    assert list(due.run_ms) == [T0]
    assert due.missed == 366 * 86_400 - 1
    cron = Cron("0 0 29 2 *", misfire="all")
    assert list(cron.due_runs(ms("2000-02-29"), ms("2009-01-01")).run_ms) == [ms("2008-02-29")]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Australia/Lord_Howe"])
def test_a_year_without_workers_is_not_counted_minute_by_minute(zone: str) -> None:
    now_ms = ms("2024-12-31 23:59:30")
    minutely = Cron("* * * * *", timezone=zone, misfire="all")
    due = minutely.due_runs(ms("2024-01-01"), now_ms)
    assert list(due.run_ms) == [now_ms - 30_000 - MINUTE * at for at in reversed(range(CATCH_UP))]
    assert due.missed == MAX_COUNTED - CATCH_UP
    assert due.next_ms == now_ms + 30_000
    in_january = Cron("* * * 1 *", timezone=zone, misfire="once")
    [due_ms] = in_january.due_runs(ms("2024-01-02"), now_ms - DAY).run_ms
    assert local(due_ms, zone) == "2024-01-31 23:59"


def test_jitter_is_a_fixed_part_for_each_schedule() -> None:
    every = Every("5m", jitter="1m")
    delays = {every.delay_ms(f"report{n}") for n in range(50)}
    assert len(delays) > 40
    assert all(0 <= delay < MINUTE for delay in delays)
    assert every.delay_ms("a") == every.delay_ms("a")
    assert Every("5m").delay_ms("a") == 0


# -- input

WRONG: list[tuple[Any, str]] = [
    (lambda: to_cron("0 0 30 2 *"), r"never fires: none of its months has that day"),
    (lambda: to_cron("0 0 31 4,6 *"), "never fires"),
    (lambda: to_cron("0 0 99 2 *"), "the day-of-month of cron '0 0 99 2 \\*' cannot be read"),
    (lambda: to_cron("61 * * * *"), "the minute of cron"),
    (lambda: to_cron("* * * *"), 'must be five fields .*"\\*/5 \\* \\* \\* \\*"'),
    (lambda: to_cron("* * * * * *"), "for seconds use every"),
    (lambda: to_cron(5), "cron must be text"),
    (lambda: Cron("* * * * *", timezone="Berlin"), "'Berlin'; if the name is right.*tzdata"),
    (lambda: Cron("* * * * *", timezone=["UTC"]), "not .*UTC.*install tzdata"),
    (lambda: Cron(["*"]), "must be five fields"),
    (lambda: Cron("* * * * *", misfire="never"), r"Cron\(misfire=...\) must be one of once, skip"),
    (lambda: Every("5m", overlap="wait"), r"Every\(overlap=...\) must be one of queue, skip"),
    (lambda: Every("5m", jitter="2d"), r"Every\(jitter=...\) must be at most a day"),
    (lambda: Every(0), "every must be more than 0"),
    (lambda: Every(0.5), "every must be a whole number of seconds"),
    (lambda: to_every("5 minutes"), 'every must be seconds, a timedelta, or a text such as "90s"'),
    (lambda: to_every(True), "every must be seconds"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_bad_input_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        make()


def test_periods() -> None:
    assert to_period_ms("1h30m", "x") == to_period_ms(timedelta(minutes=90), "x") == 90 * MINUTE
    assert to_period_ms("250ms", "x") == 250
    assert Every("1h30m").interval == Every(5400).interval == "1h30m"
    assert Every("2w").interval_ms == 14 * DAY


def test_timing_tells_when_the_due_times_change() -> None:
    schedules: list[Schedule] = [
        Cron("0 4 * * *"), Cron("0 4 * * *", timezone="Asia/Tokyo"), Cron("0 5 * * *"),
        Every("4h"), Every("5h"),
    ]  # fmt: skip
    assert len({schedule.timing for schedule in schedules}) == 5
    assert Cron("0  4 * * *", misfire="all").timing == Cron("0 4 * * *").timing
    assert Cron("0 4 * * *").in_zone("Asia/Tokyo") == Cron("0 4 * * *", timezone="Asia/Tokyo")
    own = Cron("0 4 * * *", timezone="Asia/Tokyo")
    zone: Any = ZoneInfo("Asia/Tokyo")  # a caller may have no type checker
    assert Cron("0 4 * * *", timezone=zone) == own
    assert Cron("0 4 * * *", timezone=zone).after(0) == own.after(0)
    assert own.in_zone("UTC") == own


def test_ids_contain_the_schedule_and_the_due_time() -> None:
    job_id = check_job_id(periodic_job_id("shop.tasks.report", T0))
    assert job_id == periodic_job_id("shop.tasks.report", T0)
    assert job_id.startswith(periodic_prefix("shop.tasks.report"))
    assert not job_id.startswith(periodic_prefix("shop.tasks.reports"))
    assert due_ms_of(job_id) == T0
    manual = check_job_id(manual_job_id("shop.tasks.report"))
    assert manual.startswith(periodic_prefix("shop.tasks.report"))
    assert manual != manual_job_id("shop.tasks.report")
    assert due_ms_of(new_job_id()) is None
