"""A simulator: random histories of all kinds of jobs with all kinds of faults, on a fake clock.

Every step sends real commands to a real Redis, and the laws are checked after each. A history that
breaks one is shrunk to a short one, which is printed and can be replayed:
``python -m tests.simulator --help``.
"""
