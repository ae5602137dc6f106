"""Fine-tuning jobs that share their steps beside the same jobs in turn, on the demo's base model.

All do the same steps of the same jobs, by turns, in this process, whose CPU time is compared: ours
together, ours in turn, and in turn by a plain loop over a PEFT model of each job, as most train.
Then whole training processes: one for all jobs beside one for each, as with
LORIKEET_TUNING_TOGETHER=1. The rows' lengths vary as those of chats do.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from demo import BASE, MODEL_NAME
from tenants.tuning.child.protocol import (
    LAST,
    PROCESS,
    TASK,
    TRAINING,
    ChildLimits,
    Instruction,
    SharedTask,
    TuningProgress,
    TuningTask,
)
from tests.labs.bench.machinery.report import Figure, Report, Row
from tests.labs.bench.machinery.scale import Scale

JOBS = 8
ROWS = 64
BATCHES = {1: 2.0, 4: None, 8: 1.3}
"""Rows of a batch of each job, with the speed-up that is aimed at."""
STEPS = 4
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SHARED = SharedTask(
    base=str(BASE), base_name=MODEL_NAME, device="cpu", threads=1, modules=MODULES, rank=16,
    alpha=32, limits=ChildLimits(memory_bytes=16 << 30, file_bytes=1 << 30),
)  # fmt: skip
EPOCHS = 3
PROCESS_ROUNDS = 2
"""Each takes some 80 s."""
ROOT = Path(__file__).parents[3]
WORDS = "the parrot has a sail and wind says captain on your shoulder flag gold".split()


async def run(scale: Scale) -> Report:
    """Measure tokens for each CPU-second in each round."""
    import torch

    from tenants.tuning.child.shared import SharedBase

    torch.set_num_threads(1)
    base = SharedBase(SHARED)
    rows: list[Row] = []
    peft = [PeftLoop() for _ in range(JOBS)]
    with TemporaryDirectory() as folder:
        for batch, target in BATCHES.items():
            jobs = _jobs(base, Path(folder), batch)
            ways: dict[str, Callable[[], int]] = {
                "together": partial(_tokens, [jobs], base),
                "in turn": partial(_tokens, [[job] for job in jobs], base),
                "in turn by PEFT": partial(_tokens_of_peft, jobs, peft),
            }
            rows += _compared(ways, batch, scale.rounds, target)
        for batch in (min(BATCHES), max(BATCHES)):
            rows += _whole(Path(folder), batch, BATCHES[batch])
    rows.append(_memory(base))
    return Report(
        "Fine-tuning jobs together", rows, f"{JOBS} jobs of rank 16 in one process, one thread."
    )


def _jobs(base: Any, folder: Path, batch: int) -> list[Any]:
    from tenants.tuning.child.learning import Lessons

    found = []
    for number in range(JOBS):
        own = folder / f"{batch}-{number}"
        own.mkdir()
        (own / TRAINING).write_text("".join(f"{json.dumps(row)}\n" for row in _rows(number)))
        task = _task(number, batch, n_epochs=1_000)
        found.append(Lessons(base, task, own, lambda said: None))
    return found


def _task(number: int, batch: int, n_epochs: int) -> TuningTask:
    return TuningTask(
        share=str(number), seed=number, method="supervised", beta=0, n_epochs=n_epochs,
        batch_size=batch, rate=1e-3, max_row_tokens=512, max_tokens=1 << 40, save_every_s=1 << 30,
    )  # fmt: skip


def _rows(seed: int) -> list[dict[str, Any]]:
    """Dialogues whose questions and answers have some ten words in the middle, sixty at most."""
    drawn = random.Random(seed)

    def text() -> str:
        count = min(60, max(1, round(drawn.lognormvariate(2.2, 0.7))))
        return " ".join(drawn.choices(WORDS, k=count))

    return [
        {"messages": [{"role": role, "content": text()} for role in ("user", "assistant")]}
        for _ in range(ROWS)
    ]


def _whole(folder: Path, batch: int, target: float | None) -> list[Row]:
    """Jobs from their files to their adapters, in one process and in one each."""
    jobs = range(JOBS)
    ways: dict[str, Sequence[Iterable[int]]] = {
        "one process": [jobs],
        "one each": [[job] for job in jobs],
    }
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(PROCESS_ROUNDS):
        for way, groups in ways.items():
            began = _cpu_s_of_children()
            tokens = sum(
                _process(folder / f"{batch}-{number}-{way}-{at}", group, batch)
                for at, group in enumerate(groups)
            )
            speeds[way].append(tokens / (_cpu_s_of_children() - began))
    one, each = (Figure.of(speed) for speed in speeds.values())
    what = f"whole jobs, batches of {batch}"
    return [
        Row(f"{what}, one process", one, "tokens/CPU s"),
        Row(f"{what}, one each", each, "tokens/CPU s"),
        Row(f"{what}: ratio", one.over(each), "x", at_least=target),
    ]


def _cpu_s_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _process(folder: Path, jobs: Iterable[int], batch: int) -> int:
    """Run a training process with these jobs; returns the tokens that they trained."""
    folder.mkdir()
    (folder / PROCESS).write_bytes(msgspec.json.encode(SHARED))
    names = [str(job) for job in jobs]
    for name in names:
        own = folder / name
        own.mkdir()
        (own / TRAINING).write_text("".join(f"{json.dumps(row)}\n" for row in _rows(int(name))))
        (own / TASK).write_bytes(msgspec.json.encode(_task(int(name), batch, EPOCHS)))
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-s", "-m", "tenants.tuning.child"]
    tokens = dict.fromkeys(names, 0)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        cwd=folder, env=environment,
    ) as child:  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        for name in names:
            child.stdin.write(msgspec.json.encode(Instruction("train", name)) + b"\n")
        child.stdin.flush()
        waited = set(names)
        while waited:
            said = msgspec.json.decode(child.stdout.readline(), type=TuningProgress)
            tokens[said.job] = max(tokens[said.job], said.tokens)
            if said.kind in LAST:
                assert said.kind == "trained", said
                waited.remove(said.job)
        child.stdin.close()
    return sum(tokens.values())


def _compared(
    ways: Mapping[str, Callable[[], int]], batch: int, rounds: int, target: float | None
) -> list[Row]:
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for step in ways.values():
        step()  # warm
    for _ in range(rounds):
        for way, step in ways.items():
            began = time.process_time()
            tokens = sum(step() for _ in range(STEPS))
            speeds[way].append(tokens / (time.process_time() - began))
    found = {way: Figure.of(speed) for way, speed in speeds.items()}
    what = f"{batch} row{'s' if batch > 1 else ''} of each job"
    together, in_turn, by_peft = found.values()
    return [
        *(Row(f"{what}, {way}", speed, "tokens/CPU s") for way, speed in found.items()),
        Row(f"{what}: together over in turn", together.over(in_turn), "x", at_least=target),
        Row(f"{what}: together over PEFT", together.over(by_peft), "x"),
    ]


class PeftLoop:
    """A job as a plain loop trains it: its own PEFT model, whole padded batches, AdamW."""

    def __init__(self) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(str(BASE), dtype=torch.float32)
        config = LoraConfig(r=16, lora_alpha=32, target_modules=MODULES, task_type="CAUSAL_LM")
        self.model: Any = get_peft_model(model, config).train()
        self.weights = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(self.weights, lr=1e-3)

    def step(self, batch: Sequence[Any]) -> float:
        """Train on rows; returns their mean loss."""
        import torch

        length = max(row.tokens for row in batch)
        empty = [(0, False)]
        padded = [
            [*zip(row.ids, row.learned, strict=True), *empty * (length - row.tokens)]
            for row in batch
        ]
        ids = torch.tensor([[id for id, _ in row] for row in padded])
        labels = torch.tensor([[id if learned else -100 for id, learned in row] for row in padded])
        seen = torch.tensor([[at < row.tokens for at in range(length)] for row in batch])
        loss = self.model(input_ids=ids, attention_mask=seen.long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


def _tokens_of_peft(jobs: Sequence[Any], loops: Sequence[PeftLoop]) -> int:
    """As `_tokens`, by PEFT; the jobs only say what is next."""
    tokens = 0
    for job, loop in zip(jobs, loops, strict=True):
        batch = job.batch()
        tokens += sum(example.tokens for example in batch)
        loop.step(batch)
        job._step += 1
    return tokens


def _tokens(groups: Sequence[Sequence[Any]], base: Any) -> int:
    """Take a step of each job; returns the tokens that were trained."""
    from tenants.tuning.child.learning import learn

    tokens = 0
    for group in groups:
        batches = [(job.learner, job.batch()) for job in group]
        tokens += sum(example.tokens for _, batch in batches for example in batch)
        for job, loss in zip(group, learn(base, batches), strict=True):
            job.advance(loss)
    return tokens


def _memory(base: Any) -> Row:
    """What one more job takes, its weights, gradients and two moments, beside the base model."""
    own = 4 * sum(one.numel() * one.element_size() for one in base.new_adapter(0).all)
    model = sum(one.numel() * one.element_size() for one in base._model.parameters())
    return Row("memory of one more job", Figure.of([own / model]), "of the base model's")
