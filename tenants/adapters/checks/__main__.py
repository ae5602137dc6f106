"""`python -m tenants.adapters.checks`: tasks on untrusted files, each in a process of its own.

`tenants.adapters.sandbox` starts it, with a socket as standard input. For each message, which is
the path of an empty folder with descriptors, it forks a child; the answer is the child's exit
status. A child's task is JSON on its standard input, in which files are numbers of the further
descriptors; the outcome is one line of JSON on standard output. The child sets its own limits
before it reads any file. Neither process has settings, secrets or a database.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from inference.content import CONFIG, FILES, WEIGHTS
from inference.process import gc_tuning
from inference.process.priority import give_way
from tenants.adapters.checks import commits, contents
from tenants.adapters.checks.target_modules import TargetModules
from tenants.adapters.uploads.content import CONVERTED
from tenants.adapters.uploads.refusals import UploadRefused

Task = Mapping[str, Any]
COMPUTE = "--compute"
"""The option of a process whose children compute with PEFT."""
NICE = 10
"""As a worker's: checks give way to streams of the same machine, but get on beside them."""
IDLE_S = 60
PATH_MAX = 4_096
EXCEEDED = {errno.EFBIG: "file size", errno.EMFILE: "open files", errno.ENOMEM: "memory"}
"""The limit (see `_limit`) that a failed system call ran into, by error number."""


def main() -> None:
    """Fork children until the worker ends, or asks for none for IDLE_S."""
    give_way(NICE)
    gc_tuning.start()
    # Importing PyTorch and PEFT takes seconds, and numpy a while.
    import_module("tenants.adapters.checks." + ("reference" if COMPUTE in sys.argv else "static"))
    with socket.socket(fileno=sys.stdin.fileno()) as channel:
        channel.settimeout(IDLE_S)
        with suppress(TimeoutError, BrokenPipeError):
            while True:
                folder, numbers, _flags, _address = socket.recv_fds(channel, PATH_MAX, 253)
                if not folder:
                    return
                status = _status(channel, folder, numbers)
                channel.send(b"%d" % status)


def _status(channel: socket.socket, folder: bytes, numbers: Sequence[int]) -> int:
    """How a child ended. It is killed if the worker leaves meanwhile."""
    child = os.fork()
    if not child:
        _be_child(folder, numbers)
    with suppress(PermissionError):  # the child did so itself
        os.setpgid(child, child)
    for number in numbers:
        os.close(number)
    ended = os.pidfd_open(child)
    waiting = select.poll()
    for one in (ended, channel.fileno()):
        waiting.register(one, select.POLLIN)
    waiting.poll()
    os.close(ended)
    os.killpg(child, signal.SIGKILL)  # what it started too
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _be_child(folder: bytes, numbers: Sequence[int]) -> NoReturn:
    """Do the task that standard input describes."""
    status = 1
    try:
        os.setpgid(0, 0)
        own, files = numbers[:3], numbers[3:]
        for place, number in enumerate(own):  # standard input was the channel
            os.dup2(number, place)
            os.close(number)
        os.chdir(folder)
        task = json.load(sys.stdin)
        _limit(task["limits"])
        json.dump(_outcome(task, files), sys.stdout)
        sys.stdout.flush()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


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


def _outcome(task: Task, numbers: Sequence[int]) -> dict[str, Any]:
    try:
        with ExitStack() as opened:
            files = {
                name: opened.enter_context(open(number, mode))
                for (name, mode), number in zip(task["files"], numbers, strict=True)
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
    from tenants.adapters.checks import static

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


def _rows(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    from tenants.tuning.child import rows

    return asdict(rows.read(files["rows"], task["max_rows"], task["method"]))


def _held_out(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    from tenants.tuning.child import held_out

    out = files["out"]
    out.truncate(0)  # an earlier attempt may have written to it
    chosen = held_out.select(files["held"], files["trained"], task["method"], task["most"], out)
    return asdict(chosen)


def _eval(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    from tenants.evals import stages

    plan = stages.plan_of(task)
    rows, out = files["rows"], files["out"]
    out.truncate(0)  # an earlier attempt may have written to it
    answers, verdicts = (
        [file for name, file in files.items() if name.startswith(kind)]
        for kind in ("answers", "verdicts")
    )
    if task["stage"] == "sample":
        return asdict(stages.sample(plan, rows, out))
    if task["stage"] == "ask":
        return {"asked": stages.ask(plan, rows, answers, out)}
    return stages.grade_all(plan, rows, answers, verdicts, out)


def _fit_route(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    from tenants.routes import rows

    return rows.fit_of(task, list(files.values()))


def _compute(task: Task, files: Mapping[str, IO[bytes]]) -> dict[str, Any]:
    from tenants.adapters.checks import reference

    versions = [
        {name: files[stored] for name, stored in version.items()} for version in task["versions"]
    ]
    base, dtype, prompts = Path(task["base"]), task["dtype"], task["prompts"]
    return asdict(reference.compute(base, dtype, prompts, versions, with_base=task["with_base"]))


TASKS: Mapping[str, Callable[[Task, Mapping[str, IO[bytes]]], dict[str, Any]]] = {
    "unpack": _unpack,
    "commit": _commit,
    "read": _read,
    "check": _check,
    "batch": _batch,
    "rows": _rows,
    "held_out": _held_out,
    "eval": _eval,
    "fit_route": _fit_route,
    "compute": _compute,
}

if __name__ == "__main__":
    main()
