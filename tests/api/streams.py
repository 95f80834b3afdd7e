"""Open streams for tests: the ASGI application called directly, with each request in a task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from asgiref.testing import ApplicationCommunicator

from tests.app.asgi import application


@dataclass
class Stream:
    """One request for events, as its client sees it."""

    communicator: ApplicationCommunicator
    gate: asyncio.Event  # while cleared, this client accepts nothing
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    buffer: str = ""
    last_id: str = ""
    comments: list[str] = field(default_factory=list)
    ended: bool = False

    @classmethod
    async def open(
        cls, token: str, *, after: str = "", method: str = "GET", query: str = ""
    ) -> Stream:
        headers = [(b"authorization", f"Bearer {token}".encode()), (b"host", b"testserver")]
        if after:
            headers.append((b"last-event-id", after.encode()))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "path": "/jobs/events", "query_string": query.encode(), "headers": headers,
        }  # fmt: skip
        gate = asyncio.Event()
        gate.set()

        async def through_the_gate(scope: Any, receive: Any, send: Any) -> None:
            async def send_when_open(message: Any) -> None:
                await gate.wait()
                await send(message)

            await application(scope, receive, send_when_open)

        stream = cls(ApplicationCommunicator(through_the_gate, scope), gate)
        await stream.communicator.send_input({"type": "http.request", "body": b""})
        start = await stream.communicator.receive_output(30)
        stream.status = start["status"]
        stream.headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return stream

    async def body(self) -> Any:
        """The content of a reply that is not a stream."""
        message = await self.communicator.receive_output(30)
        await self.communicator.wait(30)
        return json.loads(message["body"])

    async def read(self, timeout: float = 30) -> None:
        """Read one more piece of the body."""
        message = await self.communicator.receive_output(timeout)
        self.buffer += message.get("body", b"").decode()
        self.ended = not message.get("more_body", False)
        if self.ended:
            await self.communicator.wait(30)

    async def block(self, timeout: float = 30) -> list[str]:
        """The lines of the next block."""
        async with asyncio.timeout(timeout):
            while "\n\n" not in self.buffer:
                assert not self.ended, f"it has ended: {self.buffer!r}"
                await self.read(timeout)
        block, _, self.buffer = self.buffer.partition("\n\n")
        return block.split("\n")

    async def event(self, timeout: float = 30) -> dict[str, Any]:
        """The next event; ``event`` is its name, if it has one."""
        while True:
            found: dict[str, Any] = {}
            for line in await self.block(timeout):
                name, _, value = line.partition(": ")
                if name == "":
                    self.comments.append(line)
                elif name == "id":
                    self.last_id = value
                elif name == "data":
                    found = {**found, **json.loads(value)}
                elif name == "event":
                    found["event"] = value
            if found:
                return found

    async def events(self, count: int) -> list[tuple[str, str]]:
        """The jobs and statuses of the next events."""
        found = [await self.event() for _ in range(count)]
        return [(event["jobId"], event["status"]) for event in found]

    async def started(self) -> Stream:
        """Wait for the first block, which says where the stream begins."""
        for line in await self.block():
            name, _, value = line.partition(": ")
            if name == "id":
                self.last_id = value
        return self

    async def close(self) -> None:
        """The client disconnects."""
        await self.communicator.send_input({"type": "http.disconnect"})
        await self.communicator.wait(30)


async def eventually(condition: Any, timeout: float = 30) -> None:
    """Wait until ``condition()`` is true."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 120))
