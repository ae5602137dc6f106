"""Fine-tuning jobs."""

from __future__ import annotations

from typing import Any, Literal

from tenants.api.openai.shapes.base import Listed, Shape


class Hyperparameters(Shape):
    """Numbers, or what `auto` means for the training file."""

    n_epochs: Literal["auto"] | int = "auto"
    batch_size: Literal["auto"] | int = "auto"
    learning_rate_multiplier: Literal["auto"] | float = "auto"
    beta: Literal["auto"] | float | None = None
    """Of `dpo` alone."""


class MethodSettings(Shape):
    hyperparameters: Hyperparameters | None = None


class TuningMethod(Shape):
    type: Literal["supervised", "dpo"]
    supervised: MethodSettings | None = None
    dpo: MethodSettings | None = None


class FineTuningRequest(Shape):
    """A file of dialogues or preferences, on which an adapter of a base model is trained."""

    model: str
    training_file: str
    validation_file: str | None = None
    method: TuningMethod | None = None
    hyperparameters: Hyperparameters | None = None
    suffix: str | None = None
    seed: int | None = None
    metadata: dict[str, str] | None = None


class TuningError(Shape):
    code: str
    message: str
    param: str | None


class FineTuningJob(Shape):
    id: str
    object: Literal["fine_tuning.job"]
    created_at: int
    error: TuningError | None
    fine_tuned_model: str | None
    finished_at: int | None
    hyperparameters: Hyperparameters
    model: str
    organization_id: str
    result_files: list[str]
    seed: int
    status: Literal[
        "validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"
    ]
    trained_tokens: int | None
    training_file: str
    validation_file: str | None
    estimated_finish: int | None
    integrations: list[str]
    metadata: dict[str, str] | None
    method: TuningMethod


class FineTuningJobs(Listed, kw_only=True):
    data: list[FineTuningJob]


class FineTuningEvent(Shape):
    id: str
    object: Literal["fine_tuning.job.event"]
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, Any] | None


class FineTuningEvents(Listed, kw_only=True):
    data: list[FineTuningEvent]


class TuningMetrics(Shape):
    step: int
    train_loss: float
    full_valid_loss: float | None = None


class FineTuningCheckpoint(Shape):
    """The end of an epoch."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: TuningMetrics
    step_number: int


class FineTuningCheckpoints(Listed, kw_only=True):
    data: list[FineTuningCheckpoint]
