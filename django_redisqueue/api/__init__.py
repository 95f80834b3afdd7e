"""The HTTP API: plain JSON views, see ``urls``."""
