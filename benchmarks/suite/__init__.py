"""One module per benchmark: the first line of its docstring is the title; ``run`` yields rows."""
