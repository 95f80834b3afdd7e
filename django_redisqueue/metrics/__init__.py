"""Counts and durations of jobs, summed per minute and hour."""
