"""The results of `peers`: as rows, and as tables and a chart for docs/comparison.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from statistics import median
from typing import Any

from .peer import OURS, settings
from .processes import ROOT
from .report import Row, number, of_rounds

PAGE = ROOT / "docs" / "comparison.md"
CHART = ROOT / "docs" / "images" / "peers.svg"
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
    """Put the tables and the chart into the page, between two comments."""
    CHART.parent.mkdir(exist_ok=True)
    CHART.write_text(chart(comparison))
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
        f"load average before the run {machine['load']:.1f}. **Bold** is the best.", "",
        "![Bars for each queue and measure, with an append-only file](images/peers.svg)",
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


ROW, LABEL, BAR, PANEL = 18, 150, 250, 520  # px
COLOURS = {True: "#0b6e4f", False: "#8a94a0"}


def chart(comparison: Comparison) -> str:
    """Bars for the runs with an append-only file: one panel per measure, two panels a row."""
    height = ROW * (len(comparison.versions) + 2)
    rows = (len(MEASURES) + 1) // 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * PANEL} {rows * height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{2 * PANEL}" height="{rows * height}" fill="white"/>',
    ]
    for index, one in enumerate(MEASURES):
        x, y = index % 2 * PANEL, index // 2 * height
        lines += [f'<g transform="translate({x} {y})">', *panel(comparison, one), "</g>"]
    return "\n".join([*lines, "</svg>"]) + "\n"


def panel(comparison: Comparison, measure: Measure) -> Iterator[str]:
    names = comparison.versions
    known = [comparison.value(name, True, measure.key) or 0.0 for name in names]
    most = max(known, default=0.0) or 1.0
    better = "more" if measure.most_is_best else "less"
    title = f"{measure.title}, {measure.unit} ({better} is better)"
    yield f'<text x="8" y="{ROW}" font-weight="bold">{escape(title)}</text>'
    for row, (name, value) in enumerate(zip(names, known, strict=True), 1):
        y = ROW * row + 8
        width = max(1.0, value / most * BAR)
        yield f'<text x="{LABEL}" y="{y + 12}" text-anchor="end">{escape(name)}</text>'
        if value:
            colour = COLOURS[name == OURS]
            yield (
                f'<rect x="{LABEL + 6}" y="{y + 2}" width="{width:.1f}" height="{ROW - 5}"'
                f' fill="{colour}"/>'
            )
        cell = escape(comparison.cell(name, True, measure.key) or "—")
        x = LABEL + 12 + (width if value else 0)
        yield f'<text x="{x:.1f}" y="{y + 12}">{cell}</text>'
