"""A trainer's work on one job: it prepares a folder, starts the training process in it, follows its
messages, and keeps the result as an adapter.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
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
from tenants.models import AdapterVersion, FineTuningJob
from tenants.models.audit import SYSTEM, Actor, acting
from tenants.storage import scratch_folder
from tenants.tuning.child import protocol
from tenants.tuning.child.protocol import ChildLimits, TuningProgress, TuningTask, WholeTask
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
MOST_CRASHES = 3
CHUNK_BYTES = 1 << 20


class TrainingInterrupted(Exception):
    """The training ended early, and is to be gone on with."""


_progress = msgspec.json.Decoder(TuningProgress)


class TrainingProcess:
    """The running process. Its folder has the files that `_prepared` puts there."""

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

    def stop(self) -> None:
        """Have it save its state and end; again without effect."""
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


@dataclass
class Trainer:
    """Trains jobs on `bases`, the folders of base models by their names, on this device. It stops
    soon after `stopping` is set."""

    bases: Mapping[str, Path]
    device: str = "cpu"
    stopping: Event = field(default_factory=Event)

    def train(self, job: FineTuningJob) -> AdapterVersion | None:
        """Train a claimed job. Returns the version that it became, None if it has failed, or was
        paused or cancelled.

        Raises:
            TrainingInterrupted: it is to be gone on with.
            OSError: files can't be read or written now.
        """
        with scratch_folder() as folder:
            digest = self._prepared(job, folder)
            if digest is None:
                return None
            end = _Following(self, job, folder).end()
            if end is None:
                return None
            if end.kind == "failed":
                job.fail(end.code, end.message, end.param)
                return None
            return _kept(job, folder / protocol.RESULT, _lineage(job, digest, end))

    def _prepared(self, job: FineTuningJob, folder: Path) -> str | None:
        """Put the job's files and its task into the folder. Returns the digest of the file that is
        trained on; None if a file is gone, with which the job fails."""
        try:
            digest = _copy(job.training_file_id, folder / protocol.TRAINING)
            if job.validation_file_id is not None:
                _copy(job.validation_file_id, folder / protocol.VALIDATION)
        except FileNotFoundError:
            job.fail("file_missing", "A file of the job was deleted.")
            return None
        with suppress(FileNotFoundError):
            _copy(job.pk, folder / protocol.STATE)
        limits = ChildLimits(
            memory_bytes=settings.TUNING_MEMORY_BYTES,
            file_bytes=4 * settings.MAX_ADAPTER_BYTES,  # a state has three times the weights
        )
        whole = WholeTask(self._task(job), limits)
        (folder / protocol.TASK).write_bytes(msgspec.json.encode(whole))
        return digest

    def _task(self, job: FineTuningJob) -> TuningTask:
        base, asked = job.base_model, job.hyperparameters
        return TuningTask(
            base=str(self.bases[base.name]),
            base_name=base.name,
            device=self.device,
            threads=settings.TUNING_THREADS,
            seed=job.seed,
            method=msgspec.convert(job.method, Method),
            beta=asked.get("beta", 0.0),
            modules=target_modules_of(base).leaf_names,
            rank=min(settings.TUNING_RANK, base.max_lora_rank),
            alpha=settings.TUNING_ALPHA,
            n_epochs=asked["n_epochs"],
            batch_size=asked["batch_size"],
            rate=asked["learning_rate_multiplier"] * settings.TUNING_RATE,
            max_row_tokens=min(settings.TUNING_ROW_TOKENS, base.max_model_len),
            max_tokens=settings.TUNING_TOKENS,
            save_every_s=settings.TUNING_SAVE_S,
        )


class _Following:
    """Follows one training process."""

    def __init__(self, trainer: Trainer, job: FineTuningJob, folder: Path) -> None:
        self._trainer, self._job, self._folder = trainer, job, folder
        self._began = (time.monotonic(), 0)
        self._stopped = False

    def end(self) -> TuningProgress | None:
        """How it ended: `trained` or `failed`; None if the job is no longer to be trained."""
        last: TuningProgress | None = None
        with tempfile.TemporaryFile() as complaints:
            with _running(self._folder, complaints) as process:
                try:
                    for message in process.messages():
                        if message is not None:
                            last = message
                            self._take(message)
                        self._look(process)
                except msgspec.DecodeError:
                    log.error("tuning_message_invalid", job=self._job.pk)
            if last is not None and last.kind in ("trained", "failed"):
                return last
            status = self._status()
            if status == TuningStatus.RUNNING and not self._stopped:
                self._note_crash(complaints)
            if status == TuningStatus.RUNNING:
                raise TrainingInterrupted
        return None

    def _status(self) -> str | None:
        """The job's status; None if it is gone, or another trainer's."""
        here = FineTuningJob.objects.filter(pk=self._job.pk, run=self._job.run)
        return here.values_list("status", flat=True).first()

    def _look(self, process: TrainingProcess) -> None:
        """Stop the process if the job is not to be trained now, and kill it if it never is."""
        status = self._status()
        if status not in (TuningStatus.RUNNING, TuningStatus.PAUSED):
            process.kill()
        elif status == TuningStatus.PAUSED or self._trainer.stopping.is_set():
            self._stopped = True
            process.stop()
        elif time.monotonic() - self._began[0] > settings.TUNING_TIME_S:
            message = f"Training took longer than {settings.TUNING_TIME_S} s, the maximum."
            self._job.fail("time_limit_exceeded", message)
            process.kill()

    def _take(self, message: TuningProgress) -> None:
        if message.kind == "started":
            self._began = (time.monotonic(), message.step)
            after = f" after step {message.step}" if message.step else ""
            self._job.report(f"Training goes on{after}." if after else "Training began.")
        elif message.kind == "metrics":
            self._measure(message)
        elif message.kind == "state":
            self._store(message.file)

    def _measure(self, message: TuningProgress) -> None:
        metrics, total, job = message.metrics, message.total_steps, self._job
        step, (began_at, first) = message.step, self._began
        rest_s = (time.monotonic() - began_at) / (step - first) * (total - step)
        finish = timezone.now() + timedelta(seconds=rest_s)
        if not job.note(metrics=metrics, trained_tokens=message.tokens, estimated_finish=finish):
            return
        told = f"Step {step}/{total}: training loss={metrics['train_loss']:.4f}"
        if "full_valid_loss" in metrics:
            told += f", validation loss={metrics['full_valid_loss']:.4f}"
        job.report(
            told,
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
        path = self._folder / Path(name).name
        if self._status() in (TuningStatus.RUNNING, TuningStatus.PAUSED):
            with path.open("rb") as file:
                blobs.keep(self._job.pk, file)
        path.unlink(missing_ok=True)

    def _note_crash(self, complaints: IO[bytes]) -> None:
        """Fail the job if its process crashed too often."""
        complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - MAX_LOGGED_BYTES))
        said = complaints.read().decode(errors="replace").strip()
        log.error("tuning_process_crashed", job=self._job.pk, reason=said)
        self._job.note(crashes=F("crashes") + 1)
        if self._job.crashes + 1 >= MOST_CRASHES:
            message = f"The training process ended unexpectedly, {MOST_CRASHES} times."
            self._job.fail("training_failed", message)


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
