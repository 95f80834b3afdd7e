"""The parts of the ``demo`` command: a worker, a run watched to its end, and a report on screen."""
