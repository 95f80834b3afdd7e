"""The parts of the ``demo`` command: its worker, the run that it watches, and its report."""
