"""A trainer's work on jobs of one base model: it starts a training process, prepares a folder in it
for each job, follows its messages, and keeps the results as adapters.

The process has no environment of ours but what CUDA needs, and no descriptor but its pipes. States
that it saves are stored, so that a trainer on another machine can go on.
"""

from __future__ import annotations

import hashlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from shutil import rmtree
from threading import Event
from typing import IO, Any

import msgspec
import structlog
from django.conf import settings
from django.db.models import F
from django.utils import timezone

from tenants.adapters import sandbox
from tenants.adapters.jobs import TRAINING, judge_later
from tenants.adapters.store import target_modules_of
from tenants.adapters.uploads.keeping import Destination, keep
from tenants.adapters.uploads.refusals import UploadRefused
from tenants.adapters.uploads.unpacking import in_folder
from tenants.files import blobs
from tenants.models import AdapterVersion, BaseModel, FineTuningJob
from tenants.models.audit import SYSTEM, Actor, acting
from tenants.storage import scratch_folder
from tenants.tuning.child import protocol
from tenants.tuning.child.protocol import (
    ChildLimits,
    HeldRow,
    Instruction,
    SharedTask,
    TuningProgress,
    TuningTask,
    Verb,
)
from tenants.tuning_states import Method, TuningStatus

log = structlog.get_logger(__name__)

COMMAND = [sys.executable, "-P", "-s", "-m", "tenants.tuning.child"]
OF_CUDA = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
POLL_S = 1.0
"""How often a trainer looks whether the job is still to be trained."""
PIPE_BYTES = 4096
"""Some thirty messages: a process that is further ahead of its trainer waits."""
MAX_LINE_BYTES = 64 << 10
MAX_LOGGED_BYTES = 4 << 10
MAX_HELD_BYTES = 1 << 20
MOST_CRASHES = 3
CHUNK_BYTES = 1 << 20

Following = Callable[[Sequence[FineTuningJob]], FineTuningJob | None]


_progress = msgspec.json.Decoder(TuningProgress)
_held = msgspec.json.Decoder(list[HeldRow])


class TrainingProcess:
    """The running process, in a folder that has its task."""

    def __init__(self, folder: Path, complaints: IO[bytes]) -> None:
        kept = {name: os.environ[name] for name in OF_CUDA if name in os.environ}
        threads = {"OMP_NUM_THREADS": str(settings.TUNING_THREADS)}
        fixed = {"HOME": str(folder), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # repeatable sums
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            cwd=folder,
            env={**kept, **sandbox.ENVIRONMENT, **threads, **fixed},
            start_new_session=True,
            pipesize=PIPE_BYTES,
            bufsize=0,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def messages(self) -> Iterator[TuningProgress | None]:
        """Its messages until it ends; None whenever POLL_S passes without one.

        Raises:
            msgspec.DecodeError: it says something else.
        """
        assert self._process.stdout is not None
        number, rest = self._process.stdout.fileno(), b""
        while len(rest) < MAX_LINE_BYTES:
            if not select.select([number], [], [], POLL_S)[0]:
                yield None
                continue
            part = os.read(number, MAX_LINE_BYTES)
            if not part:
                return
            *lines, rest = (rest + part).split(b"\n")
            yield from map(_progress.decode, lines)
        raise msgspec.DecodeError("the line is too long")

    def tell(self, verb: Verb, job: str) -> None:
        """Write an instruction; without effect if it has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(msgspec.json.encode(Instruction(verb, job)) + b"\n")

    def stop(self) -> None:
        """Have it save the states of its jobs and end; again without effect."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """End it at once; again without effect."""
        self._process.kill()

    def close(self) -> int:
        """Kill it if it has not ended; returns its exit status."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return self._process.wait()


@dataclass(frozen=True, slots=True)
class LeftJob:
    """A job that a trainer has left: as a version, if it was trained to its end, or to be gone on
    with; otherwise it has failed, or is paused, cancelled or deleted."""

    job: FineTuningJob
    version: AdapterVersion | None = None
    unfinished: bool = False


@dataclass
class Trainer:
    """Trains jobs on `bases`, the folders of base models by their names, on this device. It stops
    soon after `stopping` is set."""

    bases: Mapping[str, Path]
    device: str = "cpu"
    stopping: Event = field(default_factory=Event)

    def train(self, job: FineTuningJob, following: Following) -> Iterator[LeftJob]:
        """Train a claimed job, and beside it others on its base model: `following` claims one, or
        none, given those that are trained. Yields each job that is left.

        Raises:
            OSError: files can't be read or written now; all others can be gone on with.
        """
        with scratch_folder() as folder:
            shared = msgspec.json.encode(self._shared(job.base_model))
            (folder / protocol.PROCESS).write_bytes(shared)
            yield from _Group(self, folder, following).followed(job)

    def _shared(self, base: BaseModel) -> SharedTask:
        return SharedTask(
            base=str(self.bases[base.name]),
            base_name=base.name,
            device=self.device,
            threads=settings.TUNING_THREADS,
            modules=target_modules_of(base).leaf_names,
            rank=min(settings.TUNING_RANK, base.max_lora_rank),
            alpha=settings.TUNING_ALPHA,
            limits=ChildLimits(
                memory_bytes=settings.TUNING_MEMORY_BYTES,
                file_bytes=4 * settings.MAX_ADAPTER_BYTES,  # a state has three times the weights
            ),
        )


class _Group:
    """Follows a training process and its jobs."""

    def __init__(self, trainer: Trainer, folder: Path, following: Following) -> None:
        self._trainer, self._folder, self._following = trainer, folder, following
        self._members: dict[str, _Member] = {}
        """By the names of their folders, which are removed once the process has left them."""
        self._dropped: dict[str, _Member] = {}
        self._stopped = False
        self._joined = 0
        self._filled_at = -POLL_S

    def followed(self, first: FineTuningJob) -> Iterator[LeftJob]:
        """Raises OSError."""
        with tempfile.TemporaryFile() as complaints:
            with _running(self._folder, complaints) as process:
                yield from self._join(process, first)
                try:
                    for message in process.messages():
                        if message is not None:
                            yield from self._take(message)
                        yield from self._check_statuses(process)
                        yield from self._fill(process)
                        self._stop_if_done(process)
                except msgspec.DecodeError:
                    log.error("tuning_message_invalid", jobs=self._jobs)
            yield from self._rest(complaints)

    @property
    def _jobs(self) -> list[str]:
        return [member.job.pk for member in self._members.values()]

    def _join(self, process: TrainingProcess, job: FineTuningJob) -> Iterator[LeftJob]:
        self._joined += 1
        name = str(self._joined)
        member = _Member(job, self._folder / name)
        if member.prepare():
            self._members[name] = member
            process.tell("train", name)
        else:
            yield LeftJob(job)

    def _fill(self, process: TrainingProcess) -> Iterator[LeftJob]:
        """Take further jobs while there is room. A job whose process crashed, or whose files could
        not be read beside others, is trained alone."""
        members = [member.job for member in self._members.values()]
        due = time.monotonic() - self._filled_at >= POLL_S
        if self._stopped or not due or any(job.crashes for job in members):
            return
        while 0 < len(self._members) < settings.TUNING_TOGETHER:
            job = self._following([member.job for member in self._members.values()])
            if job is None:
                break
            try:
                yield from self._join(process, job)
            except OSError as error:  # of its files alone, as far as is known
                log.warning("tuning_files_unreadable", job=job.pk, error=str(error))
                job.note(crashes=F("crashes") + 1)
                yield LeftJob(job, unfinished=True)
        self._filled_at = time.monotonic()

    def _take(self, message: TuningProgress) -> Iterator[LeftJob]:
        name = message.job
        if name in self._members and (left := self._members[name].take(message)) is not None:
            self._members.pop(name).remove()
            yield left
        elif name in self._dropped and message.kind in protocol.LAST:
            self._dropped.pop(name).remove()

    def _statuses(self) -> dict[str, str]:
        """Those of the jobs that are there and not another trainer's."""
        found = FineTuningJob.objects.filter(pk__in=self._jobs)
        present = {
            (pk, run): status for pk, run, status in found.values_list("pk", "run", "status")
        }
        return {
            name: present.get((member.job.pk, member.job.run), "")
            for name, member in self._members.items()
        }

    def _stop_if_done(self, process: TrainingProcess) -> None:
        if self._trainer.stopping.is_set():
            self._stopped = True
            process.stop()
        if not self._members:
            self._stopped = True
            process.kill()

    def _check_statuses(self, process: TrainingProcess) -> Iterator[LeftJob]:
        """Stop jobs that are not to be trained now, and drop those that never are."""
        for name, status in self._statuses().items():
            member = self._members[name]
            if status == TuningStatus.PAUSED:
                process.tell("stop", name)
            elif status != TuningStatus.RUNNING or member.timed_out():
                process.tell("drop", name)
                self._dropped[name] = self._members.pop(name)
                yield LeftJob(member.job)

    def _rest(self, complaints: IO[bytes]) -> Iterator[LeftJob]:
        """The jobs that the process, which has ended, did not end."""
        running = [
            self._members[name].job
            for name, status in self._statuses().items()
            if status == TuningStatus.RUNNING
        ]
        if running and not self._stopped:
            complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - MAX_LOGGED_BYTES))
            error_output = complaints.read().decode(errors="replace").strip()
            log.error("tuning_process_crashed", jobs=self._jobs, reason=error_output)
        for member in self._members.values():
            again = member.job in running and (self._stopped or not _crashed(member.job))
            yield LeftJob(member.job, unfinished=again)


def _crashed(job: FineTuningJob) -> bool:
    """Note that its process crashed; whether it did so too often, with which the job fails."""
    job.note(crashes=F("crashes") + 1)
    if job.crashes + 1 < MOST_CRASHES:
        return False
    message = f"The training process ended unexpectedly, {MOST_CRASHES} times."
    return job.fail("training_failed", message)


class _Member:
    """A job of a training process, with its folder there."""

    def __init__(self, job: FineTuningJob, folder: Path) -> None:
        self.job, self.folder = job, folder
        self._digest = ""
        self._began = (time.monotonic(), 0)

    def prepare(self) -> bool:
        """Put the job's files and its task into the folder; False if a file is gone, with which the
        job fails.

        Raises:
            OSError: a file can't be read now.
        """
        job, folder = self.job, self.folder
        folder.mkdir()
        try:
            self._digest = _copy(job.training_file_id, folder / protocol.TRAINING)
            if job.validation_file_id is not None:
                _copy(job.validation_file_id, folder / protocol.VALIDATION)
        except FileNotFoundError:
            job.fail("file_missing", "A file of the job was deleted.")
            return False
        with suppress(FileNotFoundError):
            _copy(job.pk, folder / protocol.STATE)
        (folder / protocol.TASK).write_bytes(msgspec.json.encode(_task(job)))
        return True

    def take(self, message: TuningProgress) -> LeftJob | None:
        """Take a message; the job, if it is its last one."""
        match message.kind:
            case "started":
                self._began = (time.monotonic(), message.step)
                self.job.note(expected_tokens=message.total_tokens)
                after = f" goes on after step {message.step}." if message.step else " began."
                self.job.report(f"Training{after}")
            case "metrics":
                self._measure(message)
            case "state":
                self._store(message.file)
            case "failed":
                self.job.fail(message.code, message.message, message.param)
                return LeftJob(self.job)
            case "stopped":
                return LeftJob(self.job, unfinished=self._is_in(TuningStatus.RUNNING))
            case "trained":
                self.job.note(held=self._held())
                lineage = _lineage(self.job, self._digest, message)
                return LeftJob(self.job, _kept(self.job, self.folder / protocol.RESULT, lineage))
        return None

    def _held(self) -> Any:
        with (self.folder / protocol.HELD).open("rb") as file:
            return msgspec.to_builtins(_held.decode(file.read(MAX_HELD_BYTES)))

    def remove(self) -> None:
        """Remove its folder."""
        rmtree(self.folder)

    def timed_out(self) -> bool:
        """Whether it was trained for too long, with which the job fails."""
        if time.monotonic() - self._began[0] <= settings.TUNING_TIME_S:
            return False
        message = f"Training took longer than {settings.TUNING_TIME_S} s, the maximum."
        return self.job.fail("time_limit_exceeded", message)

    def _measure(self, message: TuningProgress) -> None:
        metrics, total, job = message.metrics, message.total_steps, self.job
        step, (began_at, first) = message.step, self._began
        rest_s = (time.monotonic() - began_at) / (step - first) * (total - step)
        finish = timezone.now() + timedelta(seconds=rest_s)
        if not job.note(metrics=metrics, trained_tokens=message.tokens, estimated_finish=finish):
            return
        text = f"Step {step}/{total}: training loss={metrics['train_loss']:.4f}"
        if "full_valid_loss" in metrics:
            text += f", validation loss={metrics['full_valid_loss']:.4f}"
        job.report(
            text,
            {
                **metrics,
                "step": step,
                "total_steps": total,
                "trained_tokens": message.tokens,
                "estimated_finish": int(finish.timestamp()),
            },
        )
        if message.ends_epoch:
            job.checkpoints.update_or_create(step=step, defaults={"metrics": metrics})

    def _store(self, name: str) -> None:
        """Take the saved state away from the process, for whoever goes on."""
        path = self.folder / Path(name).name
        if self._is_in(TuningStatus.RUNNING, TuningStatus.PAUSED):
            with path.open("rb") as file:
                blobs.keep(self.job.pk, file)
        path.unlink(missing_ok=True)

    def _is_in(self, *statuses: TuningStatus) -> bool:
        """Whether the job is there, not another trainer's, and in one of these states."""
        here = FineTuningJob.objects.filter(pk=self.job.pk, run=self.job.run)
        return here.filter(status__in=statuses).exists()


def _task(job: FineTuningJob) -> TuningTask:
    base, asked = job.base_model, job.hyperparameters
    return TuningTask(
        share=str(job.tenant_id),
        seed=job.seed,
        method=msgspec.convert(job.method, Method),
        beta=asked.get("beta", 0.0),
        n_epochs=asked["n_epochs"],
        batch_size=asked["batch_size"],
        rate=asked["learning_rate_multiplier"] * settings.TUNING_RATE,
        max_row_tokens=min(settings.TUNING_ROW_TOKENS, base.max_model_len),
        max_tokens=settings.TUNING_TOKENS,
        save_every_s=settings.TUNING_SAVE_S,
    )


@contextmanager
def _running(folder: Path, complaints: IO[bytes]) -> Iterator[TrainingProcess]:
    process = TrainingProcess(folder, complaints)
    try:
        yield process
    finally:
        process.close()


def _copy(id: str, target: Path) -> str:
    """Copy a stored file; returns its SHA-256. Raises FileNotFoundError."""
    digest = hashlib.sha256()
    with blobs.open(id) as source, target.open("wb") as copy:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    return digest.hexdigest()


def _lineage(job: FineTuningJob, digest: str, end: TuningProgress) -> dict[str, Any]:
    job.refresh_from_db(fields=["metrics", "trained_tokens"])
    return {
        "job": job.pk,
        "training_file": job.training_file_id,
        "training_file_sha256": digest,
        "base_model": job.base_model.name,
        "base_model_sha256": end.base_sha256,
        "method": job.method,
        "hyperparameters": job.hyperparameters,
        "seed": job.seed,
        "trained_tokens": job.trained_tokens,
        "metrics": job.metrics,
    }


def _kept(job: FineTuningJob, folder: Path, lineage: dict[str, Any]) -> AdapterVersion | None:
    """Keep the adapter in the folder like an upload of whoever made the job; None if that is
    refused, with which the job fails."""

    def judge(version: AdapterVersion) -> None:
        version.report = {TRAINING: lineage}
        version.save(update_fields=["report"])
        judge_later(version)

    where = Destination(job.tenant, job.adapter_name, job.base_model.name, user=None)
    with acting(Actor(**job.actor) if job.actor else SYSTEM):
        try:
            where.refuse_unless_possible()
            version, _ = keep(where, in_folder(folder), judge)
        except UploadRefused as refusal:
            job.fail(refusal.code, refusal.message)
            return None
    return version
