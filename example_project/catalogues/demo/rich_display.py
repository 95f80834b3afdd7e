"""The demo's display on a terminal, with the optional library rich."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .display import Bar


class RichDisplay:
    """A moving bar and drawn tables."""

    def __init__(self) -> None:
        self._console = Console()

    def say(self, text: str = "") -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def table(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold")
        for place, heading in enumerate(headings):
            table.add_column(heading, justify="right" if place else "left")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    @contextmanager
    def bar(self, total: int) -> Iterator[Bar]:
        note_column = TextColumn("{task.fields[note]}", markup=False)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), note_column)
        with Progress(*columns, console=self._console) as progress:
            bar = progress.add_task("", total=total, note="")
            yield lambda done, note: progress.update(bar, completed=done, note=note)
