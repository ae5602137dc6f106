"""`python -m tenants.adapters.checks`: one task on untrusted files, in a process of its own.

`tenants.adapters.sandbox` starts it. The task is JSON on standard input, in which files are numbers
of inherited descriptors; the outcome is one line of JSON on standard output. The process sets its
own limits before it reads any file, and has no settings, secrets or database.
"""

from __future__ import annotations

import errno
import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from inference.content import CONFIG, FILES, WEIGHTS
from inference.process.priority import give_way
from tenants.adapters.checks import commits, contents
from tenants.adapters.checks.target_modules import TargetModules
from tenants.adapters.uploads.content import CONVERTED
from tenants.adapters.uploads.refusals import UploadRefused

Task = Mapping[str, Any]
NICE = 19
"""Lowest CPU priority: checking uploads can wait for streams of the same machine."""
EXCEEDED = {errno.EFBIG: "file size", errno.EMFILE: "open files", errno.ENOMEM: "memory"}
"""The limit (see `_limit`) that a failed system call ran into, by error number."""


def main() -> None:
    """Do the task that standard input describes."""
    give_way(NICE)
    task = json.load(sys.stdin)
    _limit(task["limits"])
    json.dump(_outcome(task), sys.stdout)


def _limit(limits: Mapping[str, int]) -> None:
    cpu_s = limits["cpu_s"]
    for kind, soft, hard in (
        (resource.RLIMIT_AS, limits["memory_bytes"], limits["memory_bytes"]),
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),  # SIGXCPU, then SIGKILL
        (resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
        (resource.RLIMIT_NPROC, 0, 0),  # no processes or threads, unless it runs as root
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))
    signal.alarm(limits["time_s"] + 1)  # in case the worker is killed


def _outcome(task: Task) -> dict[str, Any]:
    try:
        with ExitStack() as opened:
            files = {
                name: opened.enter_context(open(number, mode))
                for name, (number, mode) in task["files"].items()
            }
            for file in files.values():  # an attempt before this one shares the file's position
                file.seek(0)
            return TASKS[task["task"]](task, files)
    except UploadRefused as refusal:
        return {"refused": {"code": refusal.code, "message": refusal.message}}
    except MemoryError:
        return {"exceeded": "memory"}
    except OSError as error:
        if error.errno in EXCEEDED:
            return {"exceeded": EXCEEDED[error.errno]}
        return {"os_error": [error.errno, error.strerror]}


def _unpack(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    scratch = files["scratch"]
    scratch.truncate(0)
    targets = _emptied(files)
    left_out = contents.unpack(files["archive"], task["max_bytes"], targets, scratch)
    return {"left_out": left_out}


def _commit(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    return asdict(commits.unpack(files["commit"], task["max_bytes"], _emptied(files)))


def _emptied(files: Mapping[str, IO[bytes]], prefix: str = "") -> dict[str, IO[bytes]]:
    targets = {name: files[prefix + name] for name in FILES}
    for target in targets.values():  # an earlier attempt may have written to it
        target.truncate(0)
    return targets


def _read(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    return asdict(contents.read(files, _emptied(files, CONVERTED), task["oid"]))


def _check(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    from tenants.adapters.checks import static  # importing numpy takes most of the startup time

    config, weights = files[CONFIG], files[WEIGHTS]
    config_sha256, _ = contents.digested(config)
    weights_sha256, weights_bytes = contents.digested(weights)
    targets = TargetModules(task["modules"], task["max_lora_rank"])
    verdict = static.check(config, weights, weights_bytes, targets)
    return {
        "config_sha256": config_sha256,
        "weights_sha256": weights_sha256,
        "report": verdict.report(),
        "config": verdict.config.as_json() if verdict.config else {},
    }


def _batch(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    from inference.operations.registry import OPERATIONS  # no other task needs them
    from tenants.batches import reading

    operation = OPERATIONS.named(task["operation"])
    return asdict(reading.read(files["batch"], operation, task["max_body_bytes"]))


def _compute(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    from tenants.adapters.checks import reference  # importing torch takes seconds

    versions = [
        {name: files[stored] for name, stored in version.items()} for version in task["versions"]
    ]
    return asdict(reference.compute(Path(task["base"]), task["dtype"], task["prompts"], versions))


TASKS: Mapping[str, Callable[[Task, Mapping[str, IO[bytes]]], dict[str, Any]]] = {
    "unpack": _unpack,
    "commit": _commit,
    "read": _read,
    "check": _check,
    "batch": _batch,
    "compute": _compute,
}

if __name__ == "__main__":
    main()
