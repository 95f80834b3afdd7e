"""Signatures of functions whose annotations may name what only type checkers import."""

from __future__ import annotations

import inspect
import sys
from functools import partial

if sys.version_info >= (3, 14):  # evaluates annotations when they are read
    from annotationlib import Format

    signature_of = partial(inspect.signature, annotation_format=Format.STRING)
else:
    signature_of = inspect.signature
