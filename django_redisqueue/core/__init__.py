"""Pure Python, shared by all packages: names, time, JSON, and the records of jobs and workflows."""
