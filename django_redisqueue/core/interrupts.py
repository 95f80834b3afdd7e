"""The shield that keeps interrupts out of what a job must not leave half done.

An interrupt is an exception that Python raises between two bytecodes of a job. Without the shield,
one that arrives as the job has acquired a lock leaves the lock held: ``acquire()`` has returned,
but the ``try`` has not begun. On Python 3.14 the same happens to ``with lock``
(https://github.com/python/cpython/issues/148874).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

Shield = Callable[[], AbstractContextManager[object]]

#: Creates a block in which the running job is not interrupted; an interrupt that arrives is raised
#: after it. Outside of jobs the block does nothing.
interrupt_shield: ContextVar[Shield] = ContextVar(
    "redisqueue_interrupt_shield", default=nullcontext
)
