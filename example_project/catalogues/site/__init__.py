"""The example's web pages, and the parts of the ``site`` command."""
