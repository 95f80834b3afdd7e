"""How fast, how small, how even: see README.md. ``python -m benchmarks`` runs them all."""
