"""All that speaks Redis: the scripts, one typed method a transition, and the reads."""
