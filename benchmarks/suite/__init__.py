"""One module per benchmark: its docstring's first line is its title, ``run`` yields its rows."""
