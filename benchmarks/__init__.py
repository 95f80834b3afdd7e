"""Benchmarks of speed, size and latency: see README.md. ``python -m benchmarks`` runs them all."""
