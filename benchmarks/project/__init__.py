"""The Django project whose tasks the benchmarks run, and the same task for Huey."""
