"""Other queues, each in its own environment; ``suite/peers.py`` drives them.

An adapter is a file ``NAME_peer.py`` or ``NAME_peer.js``. The driver imports none: it reads the
packages, and starts ``fill.py NAME`` (or the adapter in Node) in the peer's environment.

- The docstring (a comment in JavaScript) describes the settings: ``Name: settings.``
- ``PACKAGES`` lists what to install; the first one's version is in the table.
- ``worker(kind)`` is the command of a worker for these jobs; None if the peer has no such jobs.
- ``enqueue(kind, number)`` is a function or a coroutine function.

The environment has the URL of Redis in ``PEER_URL``, the file for the notes in ``PEER_NOTES`` and,
for workers, the kind in ``PEER_KIND``. The kinds:

=========== ======================================================== ============================
kind        what a job does                                          a worker runs
=========== ======================================================== ============================
``noop``    nothing                                                  as its defaults say, in one
                                                                     process
``ten_ms``  sleeps 10 ms in the manner of the peer                   8 at a time
``async``   awaits 10 ms; only where the peer runs coroutines        100 at a time, in one process
``pickup``  nothing                                                  as ``noop``
``long``    sleeps until its process is killed; the second run ends  one or more
=========== ======================================================== ============================

Each job writes a line ``number time process session``, except that of ``noop`` jobs only every 50th
does, and of ``async`` jobs every 10th. ``work.py`` has the jobs for Python.
"""
