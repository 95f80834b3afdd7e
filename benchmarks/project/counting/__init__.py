"""SQLite, counting the connections that this process has open."""
