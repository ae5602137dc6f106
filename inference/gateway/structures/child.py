"""The process that checks answers: `python -m inference.gateway.structures.child`, with a socket as
its standard input. It ends with its parent."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time

import msgspec

from inference.operations.structure import (
    AskedStructure,
    FinishedAnswer,
    StructureOutcome,
    outcome_of,
)
from inference.operations.validation import checked_validator_of

CPU_S = 1.0
"""Processor time of one check, after which the process is killed by its timer. A usual one takes a
few milliseconds."""
MEMORY_BYTES = 1 << 30
NICENESS = 10
LENGTH_BYTES = 4
MAX_FRAME_BYTES = 8 << 20


class StructureTask(msgspec.Struct, frozen=True):
    """What to check."""

    asked: AskedStructure
    answer: FinishedAnswer


class StructureResult(msgspec.Struct, frozen=True):
    """What was found, and the processor time that it took."""

    outcome: StructureOutcome | None
    cpu_s: float


def send(channel: socket.socket, frame: bytes) -> None:
    """Send a frame, with its length before it."""
    channel.sendall(len(frame).to_bytes(LENGTH_BYTES) + frame)


def receive(channel: socket.socket) -> bytes:
    """The next frame; empty at the end."""
    length = int.from_bytes(_exactly(channel, LENGTH_BYTES))
    return _exactly(channel, min(length, MAX_FRAME_BYTES))


def _exactly(channel: socket.socket, size: int) -> bytes:
    """So many bytes; empty if the other end closes before."""
    found = bytearray()
    while len(found) < size:
        part = channel.recv(size - len(found))
        if not part:
            return b""
        found += part
    return bytes(found)


def checked(frame: bytes) -> bytes:
    """The result of a task, both as they are sent. The process may be killed during this."""
    began = time.process_time()
    task = msgspec.msgpack.decode(frame, type=StructureTask)
    outcome = outcome_of(task.asked, task.answer)
    result = StructureResult(outcome, time.process_time() - began)
    return msgspec.msgpack.encode(result)


def main() -> None:
    """Check until the parent closes its end."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    checked_validator_of({})  # imports what the first check needs
    channel = socket.socket(fileno=0)
    while frame := receive(channel):
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        result = checked(frame)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(channel, result)


if __name__ == "__main__":
    main()
