"""What is wrong with the queues, their workers, Redis and the mirror, each with its remedy."""
