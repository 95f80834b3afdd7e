"""A bare redis-py loop for comparison: one BRPOP after another until a stop value arrives."""

from __future__ import annotations

import sys

from redis import Redis


def pop_all(socket: str, key: str, stop: str) -> None:
    client = Redis(unix_socket_path=socket, decode_responses=True)
    while True:
        reply = client.brpop([key], 5)
        if reply is not None and reply[1] == stop:
            return


if __name__ == "__main__":
    pop_all(*sys.argv[1:])
