"""The gauntlet: real workers, every verb, a seeded plan of faults, and a ledger outside Redis and
the database that is asked at the end whether each promise was kept. ``make gauntlet`` runs it."""
