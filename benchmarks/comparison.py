"""The results of `peers`: as rows, and as tables for docs/comparison.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

from .peer import OURS, settings
from .processes import ROOT
from .report import Row, number, of_rounds

PAGE = ROOT / "docs" / "comparison.md"
BEGIN, END = "<!-- begin peers -->\n", "<!-- end peers -->\n"
MODES = {True: "append-only file", False: "no append-only file"}


@dataclass(frozen=True, slots=True)
class Measure:
    """A column of the tables. ``case`` is the function that measures it."""

    key: str
    case: str
    title: str
    unit: str
    most_is_best: bool = True


MEASURES = (
    Measure("enqueue", "noop", "enqueue", "calls/s"),
    Measure("noop", "noop", "no-op jobs", "jobs/s"),
    Measure("ten_ms", "ten_ms", "10 ms jobs, 8 at a time", "jobs/s"),
    Measure("at_once", "at_once", "async 10 ms, 100 at a time", "jobs/s"),
    Measure("pickup_p50", "pickup", "pick-up p50", "ms", False),
    Measure("pickup_p99", "pickup", "pick-up p99", "ms", False),
    Measure("worker_killed", "worker_killed", "recovery, worker killed", "s", False),
    Measure("child_killed", "child_killed", "recovery, child killed", "s", False),
)
RECOVERY = MEASURES[-2:]


@dataclass(slots=True)
class Comparison:
    """The numbers of all rounds, or why there are none, by peer, mode and measure."""

    versions: dict[str, str] = field(default_factory=dict)
    found: dict[tuple[str, bool, str], list[float]] = field(default_factory=dict)
    failed: dict[tuple[str, bool, str], str] = field(default_factory=dict)

    def add(self, name: str, appendonly: bool, **values: float) -> None:
        self.versions.setdefault(name, "")
        for key, value in values.items():
            self.found.setdefault((name, appendonly, key), []).append(value)

    def fail(self, name: str, why: str, appendonly: bool | None = None, case: str = "") -> None:
        """Record why there is no number, for one case or for all."""
        self.versions.setdefault(name, "")
        for mode in MODES if appendonly is None else (appendonly,):
            for one in MEASURES:
                if case in ("", one.case) and (mode or one not in RECOVERY):
                    self.failed[name, mode, one.key] = why

    def value(self, name: str, appendonly: bool, key: str) -> float | None:
        rounds = self.found.get((name, appendonly, key))
        return median(rounds) if rounds else None

    def cell(self, name: str, appendonly: bool, key: str) -> str:
        value = self.value(name, appendonly, key)
        return self.failed.get((name, appendonly, key), "") if value is None else number(value)

    def best(self, appendonly: bool, measure: Measure) -> str:
        """The name of the best peer, ours or not; "" if nothing was measured."""
        values = {name: self.value(name, appendonly, measure.key) for name in self.versions}
        known = {name: value for name, value in values.items() if value is not None}
        choose = max if measure.most_is_best else min
        return choose(known, key=known.__getitem__, default="")

    def columns(self) -> Iterator[tuple[bool, Measure]]:
        for appendonly in MODES:
            for one in MEASURES:
                if appendonly or one not in RECOVERY:
                    yield appendonly, one

    def rows(self) -> Iterator[Row]:
        for appendonly, one in self.columns():
            for name in self.versions:
                what = f"{one.title}: {name} ({MODES[appendonly]})"
                rounds = self.found.get((name, appendonly, one.key))
                if rounds:
                    yield of_rounds(what, rounds, one.unit)
                else:
                    note = self.failed.get((name, appendonly, one.key), "not measured")
                    yield Row(what, None, note)

    def not_first(self) -> Iterator[str]:
        """One sentence for each measure in which another peer is better than ours."""
        for appendonly, one in self.columns():
            best, ours = self.best(appendonly, one), self.cell(OURS, appendonly, one.key)
            if best not in ("", OURS):
                theirs = self.cell(best, appendonly, one.key)
                yield f"{one.title}, {MODES[appendonly]}: {best} {theirs}, ours {ours} {one.unit}."

    def table(self, appendonly: bool, measures: Sequence[Measure]) -> Iterator[str]:
        """Lines of Markdown, with the best of each column in bold."""
        yield "| | " + " | ".join(f"{one.title}, {one.unit}" for one in measures) + " |"
        yield "|---|" + "---:|" * len(measures)
        for name, version in self.versions.items():
            cells = [self.cell(name, appendonly, one.key) or "—" for one in measures]
            best = [self.best(appendonly, one) == name for one in measures]
            cells = [f"**{cell}**" if top else cell for cell, top in zip(cells, best, strict=True)]
            yield f"| {name} {version} | " + " | ".join(cells) + " |"


def write(comparison: Comparison, machine: Mapping[str, Any]) -> None:
    """Put the tables into the page, between two comments."""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + markdown(comparison, machine) + END + after)


def markdown(comparison: Comparison, machine: Mapping[str, Any]) -> str:
    today = datetime.now(UTC).date()
    rounds = max(map(len, comparison.found.values()), default=0)
    system = machine["system"].partition("-")[0]
    lines = [
        f"Measured on {today}, rounds: {rounds} (medians); {machine['cores']} cores, "
        f"{system}, Python {machine['python']}, Redis {machine['redis']};",
        f"load average before the run {machine['load']:.1f}. **Bold** is the best.",
    ]  # fmt: skip
    for appendonly, title in MODES.items():
        lines += ["", f"{title.capitalize()}:", ""]
        columns = [one for mode, one in comparison.columns() if mode is appendonly]
        lines += comparison.table(appendonly, [one for one in columns if one not in RECOVERY])
    lines += ["", "Recovery after `kill -9` (append-only file, once):", ""]
    lines += comparison.table(True, RECOVERY)
    lines += ["", "Where ours is not first:", ""]
    lines += [f"- {sentence}" for sentence in comparison.not_first()] or ["- Nowhere."]
    lines += ["", "Settings of the adapters:", ""]
    lines += [f"- {settings(name)}" for name in comparison.versions]
    return "\n".join(lines) + "\n"
