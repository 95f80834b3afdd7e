"""Everything that speaks to Redis: the scripts, one typed method per transition, and the reads."""
