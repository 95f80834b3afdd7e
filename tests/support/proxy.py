"""A proxy between a client and Redis that is slow, forgetful or dead on demand.

One thread and one ``select`` for all connections: a delay is a time in a queue, never a sleep, so
delayed bytes hold up nothing else. Benchmarks run it as a process of its own, out of the way of the
GIL:

python -m tests.support.proxy --listen 127.0.0.1:0 --target /tmp/redis.sock --delay-ms 1

Addresses are ``host:port`` (port 0: a free one) or the path of a unix socket.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
CHUNK_BYTES = 1 << 18


@dataclass(eq=False, slots=True)
class _End:
    """One of the two sockets of a connection."""

    sock: socket.socket
    is_client: bool
    peer: _End | None = None
    unsent: bytearray = field(default_factory=bytearray)
    closing: bool = False  # once its unsent bytes are gone
    doomed: bool = False  # the next reply is to be dropped


class Proxy:
    """Forwards everything until told otherwise. Every method may be called from any thread."""

    def __init__(self, target: str, listen: str = "127.0.0.1:0", delay_ms: float = 0) -> None:
        self.delay_ms = delay_ms  # in each direction; may be changed at any time
        self.dropped = 0  # replies dropped so far: a fault that never took effect proves nothing
        self.accepted = 0  # connections accepted so far
        self._target = target
        self._drops = 0
        self._matching = b""
        self._swallow = False
        self._ends: set[_End] = set()
        self._line: deque[tuple[float, _End, bytes]] = deque()  # due time, receiver, bytes
        self._orders: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._stopping = False
        # Not epoll: that rounds a timeout up to whole milliseconds.
        self._selector = selectors.SelectSelector()
        self._listener = _listen(listen)
        self._selector.register(self._listener, READ, self._accept)
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._selector.register(self._bell, READ, self._obey)
        self.address = _name(self._listener)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # --- what a test or benchmark calls -----------------------------------------------------------

    def drop_replies(self, count: int, matching: bytes = b"") -> None:
        """Drop the next ``count`` replies: Redis has done what was asked, the client hears nothing.

        The connection is closed in place of the reply. Only replies to requests that contain
        ``matching`` count, so that a test can spare the handshake: ``matching=b"EVALSHA"``.
        """

        def order() -> None:
            self._drops, self._matching = count, matching

        self._call(order)

    def cut(self) -> int:
        """Close all connections, discarding what is in transit, and return their number. New
        connections are accepted."""
        closed: list[int] = []

        def order() -> None:
            closed.append(sum(end.is_client and end.peer is not None for end in self._ends))
            self._close_all()

        self._call(order)
        return closed[0]

    def black_hole(self, on: bool = True) -> None:
        """While on: connections are accepted and stay open, and nothing passes through them.
        Turning it off cuts them."""

        def order() -> None:
            self._swallow = on
            if not on:
                self._close_all()

        self._call(order)

    def forget(self) -> None:
        """From now on nothing passes through the existing connections, although they stay open, as
        when a firewall forgets them. New connections work."""

        def order() -> None:
            for end in self._ends:
                end.peer = None

        self._call(order)

    def close(self) -> None:
        """Stop listening and close all connections. May be called twice."""
        if self._thread.is_alive():
            self._call(self._stop)
            self._thread.join()

    def join(self) -> None:
        """Wait until the proxy is closed."""
        self._thread.join()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the loop, all in its own thread ----------------------------------------------------------

    def _call(self, order: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._orders.append((order, done))
        self._ringer.send(b"!")
        done.result(timeout=10)

    def _obey(self, _: int) -> None:
        self._bell.recv(64)
        while self._orders:
            order, done = self._orders.popleft()
            order()
            done.set_result(None)

    def _run(self) -> None:
        while not self._stopping:
            wait = self._line[0][0] - time.monotonic() if self._line else None
            for key, mask in self._selector.select(wait):
                key.data(mask)
            self._deliver()
        self._close_all()  # also connections accepted in the same round as the order to stop
        for sock in (self._listener, self._bell, self._ringer):
            sock.close()
        self._selector.close()

    def _stop(self) -> None:
        self._close_all()
        if self.address.startswith("/"):
            os.unlink(self.address)
        self._stopping = True

    def _accept(self, _: int) -> None:
        sock, _address = self._listener.accept()
        self.accepted += 1
        client = self._add(sock, is_client=True)
        if self._swallow:
            return
        try:
            server = self._add(_connect(self._target), is_client=False)
        except OSError:
            self._close(client)
        else:
            client.peer, server.peer = server, client

    def _add(self, sock: socket.socket, is_client: bool) -> _End:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = _End(sock, is_client)
        self._ends.add(end)
        self._selector.register(sock, READ, lambda mask: self._ready(end, mask))
        return end

    def _ready(self, end: _End, mask: int) -> None:
        if mask & WRITE and end in self._ends:  # otherwise its peer closed it a moment ago
            self._send(end, b"")
        if mask & READ and end in self._ends:
            self._receive(end)

    def _receive(self, end: _End) -> None:
        try:
            data = end.sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data and (self._swallow or end.peer is None):
            self._close(end)
        elif not self._swallow and end.peer is not None:
            self._forward(end, end.peer, data)

    def _forward(self, end: _End, peer: _End, data: bytes) -> None:
        if end.is_client:
            peer.doomed = peer.doomed or (self._drops > 0 and self._matching in data)
        elif end.doomed and data:
            end.doomed = False
            if self._drops > 0:
                self._drops -= 1
                self.dropped += 1
                self._close(end)
                return
        if not data:
            self._selector.unregister(end.sock)  # the end of a stream stays readable
        self._line.append((time.monotonic() + self.delay_ms / 1000, peer, data))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._line and self._line[0][0] <= now:
            _, end, data = self._line.popleft()
            if end in self._ends:
                end.closing = end.closing or not data
                self._send(end, data)

    def _send(self, end: _End, data: bytes) -> None:
        end.unsent += data
        try:
            del end.unsent[: end.sock.send(end.unsent) if end.unsent else 0]
        except BlockingIOError:
            pass
        except OSError:
            self._close(end)
            return
        if end.closing and not end.unsent:
            self._close(end)
        elif end.sock in self._selector.get_map():
            key = self._selector.get_key(end.sock)
            if key.events != (events := READ | WRITE if end.unsent else READ):
                self._selector.modify(end.sock, events, key.data)

    def _close(self, end: _End) -> None:
        for sock_end in (end, end.peer):
            if sock_end in self._ends:
                self._ends.discard(sock_end)
                if sock_end.sock in self._selector.get_map():
                    self._selector.unregister(sock_end.sock)
                sock_end.sock.close()

    def _close_all(self) -> None:
        for end in list(self._ends):
            self._close(end)
        self._line.clear()


def _listen(address: str) -> socket.socket:
    if address.startswith("/"):
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(address)
    else:
        host, _, port = address.rpartition(":")
        sock = socket.create_server((host, int(port)))
    sock.listen(512)
    return sock


def _connect(address: str) -> socket.socket:
    if not address.startswith("/"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=1)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(1)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def _name(sock: socket.socket) -> str:
    name = sock.getsockname()
    return str(name) if sock.family == socket.AF_UNIX else f"{name[0]}:{name[1]}"


def main() -> None:
    """Run one proxy until SIGTERM or SIGINT; the first line printed is its address."""
    parser = argparse.ArgumentParser(description="A delaying proxy in front of Redis.")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port or socket path")
    parser.add_argument("--target", required=True, help="host:port or socket path of Redis")
    parser.add_argument("--delay-ms", type=float, default=0, help="delay in each direction")
    options = parser.parse_args()
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before the thread, which inherits it
    with Proxy(options.target, options.listen, options.delay_ms) as proxy:
        print(proxy.address, flush=True)
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
