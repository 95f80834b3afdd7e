"""The mirror: what happened to every job, in the ORM."""
