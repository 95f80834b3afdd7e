"""Counts the entries of .po files line by line, without the code under test."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

LINE = re.compile(r'(?:(?P<keyword>msg\w+(?:\[\d+\])?)\s+)?"(?P<text>.*)"$')


def plain_count(file: Path) -> Counter[str]:
    """The numbers of translated, fuzzy and untranslated entries; the header and obsolete entries
    are excluded."""
    counts = Counter(translated=0, fuzzy=0, untranslated=0)
    for block in re.split(r"\n\s*\n", file.read_text(encoding="utf-8")):
        fields = read_fields(block)
        if not fields or (not fields["msgid"] and "msgctxt" not in fields):
            continue
        if re.search(r"^#,.*\bfuzzy\b", block, re.MULTILINE):
            counts["fuzzy"] += 1
        elif all(text for keyword, text in fields.items() if keyword.startswith("msgstr")):
            counts["translated"] += 1
        else:
            counts["untranslated"] += 1
    return counts


def read_fields(block: str) -> dict[str, str]:
    """The strings of one entry by keyword: msgctxt, msgid, msgid_plural, msgstr or msgstr[n]."""
    fields: dict[str, str] = {}
    keyword = ""
    for line in block.splitlines():
        if found := LINE.match(line):
            keyword = found["keyword"] or keyword
            fields[keyword] = fields.get(keyword, "") + found["text"]
    return fields
