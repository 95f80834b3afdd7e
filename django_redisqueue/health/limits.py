"""Limits in words."""

from __future__ import annotations

from ..broker.limits import LimitState
from ..core import formatting

NAMED = 3  # holders that a sentence names


def limit_use(state: LimitState) -> str:
    """``5 of 5``, ``100 in 1m``"""
    if state.is_rate:
        return str(state.rate) if state.rate else "no limit"
    if state.most is None:
        return f"{formatting.number(state.used)}, no limit"
    return f"{formatting.number(state.used)} of {formatting.number(state.most)}"


def limit_sentence(state: LimitState) -> str:
    """``limit stripe:42, 5 of 5, held by job_1, job_2, job_3 and 2 more``"""
    words = f"limit {state.name}, {limit_use(state)}"
    if state.next_ms:
        words += f", next start in {formatting.duration(state.next_ms)}"
    named = [holder.job_id for holder in state.holders[:NAMED]]
    if named:
        more = state.used - len(named)
        rest = f" and {formatting.number(more)} more" if more > 0 else ""
        words += f", held by {', '.join(named)}{rest}"
    return words
