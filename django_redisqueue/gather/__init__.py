"""Gather: queries side by side that meet in one hash (docs/gather.md)."""

from .handle import Gather, gather_of, get_gather
from .listeners import listener, publish

__all__ = ["Gather", "gather_of", "get_gather", "listener", "publish"]
