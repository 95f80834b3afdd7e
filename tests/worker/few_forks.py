"""Makes some forks fail, as on a machine without room; the first one is the fork server.

``FORKS_THAT_FAIL``: their numbers, such as ``3,4``, each process counting on from its parent.
"""

from __future__ import annotations

import errno
import os
from itertools import count

FAIL = {int(n) for n in os.environ["FORKS_THAT_FAIL"].split(",")}
_numbers = count(1)
_fork = os.fork


def fork() -> int:
    if next(_numbers) in FAIL:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return _fork()


os.fork = fork
