"""One module a benchmark: its docstring's first line is its title, ``run`` yields its rows."""
