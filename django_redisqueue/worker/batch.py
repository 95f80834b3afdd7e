"""How many jobs to claim at once: as many as are expected to run within the batch window."""

from __future__ import annotations

MAX_BATCH = 64


class BatchSize:
    """An estimate of the run time of the jobs to come, from those that ran.

    It begins with one job, rises at once when jobs turn out slow and falls slowly, by a quarter of
    the difference a batch: a batch too small costs a round trip, one too large makes jobs wait.
    """

    def __init__(self, window_ms: int) -> None:
        self._window = window_ms / 1000
        self._estimate = self._window

    def jobs(self) -> int:
        """1 to 64; half of what fits, for a batch is asked for while another runs."""
        if self._estimate <= 0:
            return 1
        return max(1, min(MAX_BATCH, int(self._window / self._estimate / 2)))

    def learn(self, jobs: int, seconds: float) -> None:
        """``jobs`` have run in ``seconds``."""
        mean = max(seconds / jobs, 1e-6)
        self._estimate = mean if mean > self._estimate else self._estimate * 0.75 + mean * 0.25
