"""Speed, size and evenness: see README.md. ``python -m benchmarks`` runs all benchmarks."""
