"""Other queues of the field, each in an environment of its own; see ``suite/peers.py``."""
