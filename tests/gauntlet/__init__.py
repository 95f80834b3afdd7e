"""The gauntlet: real workers, every verb and a seeded plan of faults. At the end, a ledger outside
Redis and the database shows whether each promise was kept. ``make gauntlet`` runs it."""
