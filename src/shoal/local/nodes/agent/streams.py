"""What a user sees and does inside an agent's pods: logs, commands, output, ports.

Behind the embedded API server's log, exec, attach and port-forward, and behind the port that a real API server asks.
Refuses in the kubelet's words what a pod cannot give.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.kube.clock import Clock
from shoal.local.apiserver.primitives.status import bad_request
from shoal.local.apiserver.streams.terminals import ExecOptions
from shoal.local.apiserver.verbs import subresources
from shoal.local.nodes.agent.agent import Agent
from shoal.local.nodes.runtime.logs import LogOptions, why_no_log
from shoal.local.nodes.runtime.process import ContainerProcess
from shoal.local.nodes.runtime.program import AttachedContainer, ContainerProgram


class PodStreams:
    def __init__(self, agent: Agent, clock: Clock) -> None:
        self._agent = agent
        self._clock = clock

    async def log(self, pod: Json, asked: subresources.LogRequest) -> AsyncIterator[bytes]:
        if refusal := why_no_log(pod, asked.container, asked.previous):
            raise bad_request(refusal)
        since = parse_time(asked.since_time) if asked.since_time else None
        if asked.since_seconds:
            since = self._clock.now() - asked.since_seconds * 1_000_000
        options = LogOptions(
            follow=asked.follow,
            previous=asked.previous,
            tail=asked.tail_lines,
            since=since,
            timestamps=asked.timestamps,
            limit_bytes=asked.limit_bytes,
        )
        return self._agent.logs(pod["metadata"]["namespace"], pod["metadata"]["name"], asked.container, options)

    async def start(self, pod: Json, asked: ExecOptions) -> ContainerProgram:
        return await ContainerProgram.start(
            self._process(pod, asked.container), list(asked.command), asked.stdin, asked.tty
        )

    async def attach(self, pod: Json, asked: ExecOptions) -> AttachedContainer:
        process = self._process(pod, asked.container)
        try:
            return await AttachedContainer.start(process, asked.stdin)
        except OSError as error:
            raise bad_request(f"container {asked.container} cannot be attached to: {error.strerror}") from None

    async def connect(self, pod: Json, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = await self._agent.connect(pod["metadata"]["namespace"], pod["metadata"]["name"], port)
        return await asyncio.open_connection(sock=connection)

    def _process(self, pod: Json, container: str) -> ContainerProcess:
        metadata = pod["metadata"]
        found = self._agent.process(metadata["namespace"], metadata["name"], container)
        if found is None:
            raise bad_request(f"container {container} of pod {metadata['name']} is not running as a process here")
        return found
