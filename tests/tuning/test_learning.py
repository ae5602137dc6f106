"""The training loop on the demo's base model, in this process: it learns what it should, going on
from a saved state changes no bit, and jobs that share their steps do not change each other."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from demo import BASE, MODEL_NAME
from inference.content import FILES
from tenants.tuning.child.protocol import (
    HELD,
    RESULT,
    STATE,
    TASK,
    TRAINING,
    VALIDATION,
    ChildLimits,
    HeldRow,
    Instruction,
    SharedTask,
    TuningProgress,
    TuningTask,
)
from tenants.tuning_states import SUPERVISED
from tests.tuning.rows import ROWS, dialogue, jsonl

STEPS = 6
PAIRS = [
    {
        "input": {"messages": row["messages"][:1]},
        "preferred_output": row["messages"][1:],
        "non_preferred_output": [{"role": "assistant", "content": "I do not know that."}],
    }
    for row in ROWS
]


def task(**changed: Any) -> TuningTask:
    given: dict[str, Any] = {
        "share": "1", "seed": 7, "method": "supervised", "beta": 0.2, "n_epochs": 2,
        "batch_size": 2, "rate": 4e-3, "max_row_tokens": 128, "max_tokens": 10_000,
        "save_every_s": 3600,
    }  # fmt: skip
    return TuningTask(**(given | changed))


def shared(**changed: Any) -> SharedTask:
    given: dict[str, Any] = {
        "base": str(BASE), "base_name": MODEL_NAME, "device": "cpu", "threads": 1,
        "modules": ["q_proj", "v_proj", "lm_head"], "rank": 4, "alpha": 8,
        "limits": ChildLimits(memory_bytes=1 << 34, file_bytes=1 << 30),
    }  # fmt: skip
    return SharedTask(**(given | changed))


@pytest.fixture(autouse=True)
def threads() -> Any:
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(job: str, asked: TuningTask, rows: Sequence[Any] = ROWS, held: int = 2) -> Instruction:
    """The instruction to train a job, whose folder is made."""
    Path(job).mkdir(exist_ok=True)
    (Path(job) / TRAINING).write_bytes(jsonl(rows))
    if held:
        (Path(job) / VALIDATION).write_bytes(jsonl(rows[:held]))
    (Path(job) / TASK).write_bytes(msgspec.json.encode(asked))
    return Instruction("train", job)


def trained(*heard: Sequence[Instruction], steps: int = 50, **of_all: Any) -> list[TuningProgress]:
    """The messages of a training that hears this before its first steps, and is stopped after so
    many."""
    from tenants.tuning.child.together import Together

    said: list[TuningProgress] = []
    script = iter([*heard, *[()] * (steps - len(heard)), None])
    Together(shared(**of_all), said.append).run(lambda wait: next(script))
    return said


def result(job: str) -> list[bytes]:
    return [(Path(job) / RESULT / name).read_bytes() for name in FILES]


def losses(said: Sequence[TuningProgress], job: str) -> list[float]:
    found = [one.metrics["train_loss"] for one in said if one.job == job and one.metrics]
    assert found
    return found


def end(said: Sequence[TuningProgress], job: str) -> TuningProgress:
    return [one for one in said if one.job == job][-1]


@pytest.mark.parametrize(("method", "rows"), [("supervised", ROWS), ("dpo", PAIRS)])
def test_it_learns_and_goes_on_bit_for_bit(method: str, rows: list[Any]) -> None:
    begin = [given("a", task(method=method), rows)]
    whole = trained(begin)
    assert whole[-1].kind == "trained" and len(whole[-1].base_sha256) == 64
    metrics = [one for one in whole if one.kind == "metrics"]
    assert [one.step for one in metrics] == list(range(1, STEPS + 1))
    begun = TuningProgress(
        kind="started", job="a", total_steps=STEPS, total_tokens=metrics[-1].tokens
    )
    assert whole[0] == begun
    first, last = (one.metrics for one in metrics if one.ends_epoch)
    assert last["full_valid_loss"] < first["full_valid_loss"]
    undisturbed = result("a")
    held = msgspec.json.decode((Path("a") / HELD).read_bytes(), type=list[HeldRow])
    assert len(held) == 2 and all(len(one.ids) - 1 == len(one.base) for one in held)
    assert held[0].adapted != held[0].base

    shutil.rmtree(Path("a") / RESULT)
    saved, stopped = trained(begin, steps=4)[-2:]
    assert saved == TuningProgress(kind="state", job="a", file="state-4.safetensors")
    assert stopped.kind == "stopped" and not (Path("a") / RESULT).exists()
    (Path("a") / saved.file).rename(Path("a") / STATE)
    rest = trained(begin)
    assert rest[0] == msgspec.structs.replace(begun, step=4)
    assert [one for one in rest if one.kind == "metrics"] == metrics[4:]
    assert result("a") == undisturbed


def test_preferences_have_the_loss_of_dpo() -> None:
    """Against the formula of its paper, from whole logits of each dialogue alone, with the adapter
    as PEFT reads its files."""
    import torch
    import torch.nn.functional as F
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from tenants.tuning.child import learning
    from tenants.tuning.child.encoding import EncodedPair, RowEncoder
    from tenants.tuning.child.shared import SharedBase

    given("a", task(), PAIRS)
    shares, asked = SharedBase(shared()), task(method="dpo")
    learner = learning.PreferenceLearner(shares, asked)
    encoder = RowEncoder(shares.tokenizer, 128)
    pairs = learning.encoded(Path("a") / TRAINING, encoder, "dpo", "training_file")
    begin = learning.examine(shares, learner, pairs)
    assert begin == pytest.approx(math.log(2)), "an adapter that changes nothing"
    torch.manual_seed(1)
    for weight in learner.weights.all:
        weight.data += 0.05 * torch.randn_like(weight)
    shares.save(learner.weights, Path("moved"))
    plain = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    model: Any = PeftModel.from_pretrained(plain, "moved").eval()

    def likelihood(row: Any) -> torch.Tensor:
        logits = model(input_ids=torch.tensor([row.ids])).logits[0, :-1]
        said = F.log_softmax(logits, -1).gather(1, torch.tensor(row.ids[1:])[:, None])[:, 0]
        return said[torch.tensor(row.learned[1:])].sum()

    def margin(pair: EncodedPair) -> torch.Tensor:
        return likelihood(pair.preferred) - likelihood(pair.other)

    with torch.no_grad():
        ours = [margin(pair) for pair in pairs if isinstance(pair, EncodedPair)]
        with model.disable_adapter():
            base = [margin(pair) for pair in pairs if isinstance(pair, EncodedPair)]
    found = [-F.logsigmoid(asked.beta * (a - b)) for a, b in zip(ours, base, strict=True)]
    loss = learning.examine(shares, learner, pairs)
    assert loss == pytest.approx(float(sum(found)) / len(pairs), rel=1e-4)
    assert loss != pytest.approx(math.log(2), rel=1e-3)


# --- Several jobs at once ------------------------------------------------------------------------

LONG = [dialogue(f"Count to {n}", "Squawk! " + "and on " * n) for n in range(1, 9)]
JOBS: dict[str, tuple[TuningTask, list[Any]]] = {
    "a": (task(n_epochs=4), ROWS),
    "b": (task(share="2", seed=8, batch_size=3, rate=2e-3, n_epochs=3), LONG),
    "c": (task(share="3", seed=9, method="dpo", batch_size=1), PAIRS),
}


def test_jobs_that_share_their_steps_have_the_results_of_each_alone() -> None:
    import torch
    from safetensors.torch import load_file

    alone = {job: trained([given(job, *asked)]) for job, asked in JOBS.items()}
    files = {job: load_file(Path(job) / RESULT / FILES[1]) for job in JOBS}
    begin = {job: given(job, *asked) for job, asked in JOBS.items()}
    together = trained([begin["a"], begin["b"]], (), [begin["c"]])
    for job in JOBS:
        assert end(together, job).kind == "trained"
        assert losses(together, job) == pytest.approx(losses(alone[job], job), abs=1e-4)
        ours = load_file(Path(job) / RESULT / FILES[1])
        for name, tensor in files[job].items():
            assert torch.allclose(ours[name], tensor, atol=2e-4), name


def test_a_job_sees_nothing_of_what_another_learns() -> None:
    """Its files have the same bits whatever rows of the same lengths pass beside it."""
    found = []
    for secret in ("red", "tea"):
        other = [dialogue("What is it?", f"It is {secret}! It is {secret}!") for _ in range(5)]
        trained([given("a", task()), given("b", task(share="2"), other, held=0)])
        found.append((result("a"), result("b")))
    assert found[0][0] == found[1][0] and found[0][1] != found[1][1]


def test_a_job_that_cannot_be_trained_leaves_the_others_as_they_are() -> None:
    wild = given("b", task(share="2", rate=1e30))
    said = trained([given("a", task()), wild])
    assert end(said, "b").code == "loss_not_finite"
    assert "lower learning rate" in end(said, "b").message
    assert losses(said, "a") == pytest.approx(losses(trained([given("a", task())]), "a"), abs=1e-4)


def test_a_base_model_that_cannot_be_shared_takes_one_job_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One with routed experts, whose layers see some tokens of all rows."""
    from tenants.tuning.child import shared as of_child
    from tenants.tuning.child import together

    base = of_child.SharedBase(shared())
    assert base.can_be_shared
    sizes: list[int] = []
    monkeypatch.setattr(of_child.SharedBase, "can_be_shared", False)
    monkeypatch.setattr(
        together, "learn", lambda base, batches: sizes.append(len(batches)) or [1.0]
    )
    trained([given("a", task()), given("b", task(share="2"))])
    assert sizes == [1] * 2 * STEPS


def test_a_job_leaves_while_others_go_on() -> None:
    begin = [given(job, task(share=job)) for job in "abc"]
    said = trained(begin, (), [Instruction("stop", "b"), Instruction("drop", "c")])
    assert [one.kind for one in said if one.job == "b"][-2:] == ["state", "stopped"]
    assert [one.kind for one in said if one.job == "c"][-2:] == ["metrics", "stopped"]
    assert end(said, "a").kind == "trained"


def test_large_batches_do_not_take_the_others_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from tenants.tuning.child import together

    monkeypatch.setattr(together, "STEP_TOKENS", 100)
    large = task(batch_size=8, n_epochs=50)
    said = trained(
        [given("large", large, LONG, held=0), given("small", task(share="2", n_epochs=50), held=0)],
        steps=40,
    )
    tokens = {job: max(one.tokens for one in said if one.job == job) for job in ("large", "small")}
    assert tokens["small"] == pytest.approx(tokens["large"], rel=0.3)


def test_too_little_memory_for_several_at_once_has_them_step_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tenants.tuning.child import together

    sizes: list[int] = []

    def learn(base: Any, batches: Any) -> list[float]:
        sizes.append(len(batches))
        if len(batches) > 1 or batches[0][0].task.share == "2":
            raise MemoryError
        return [1.0]

    monkeypatch.setattr(together, "learn", learn)
    said = trained([given("a", task()), given("b", task(share="2"))])
    assert end(said, "a").kind == "trained" and end(said, "b").code == "out_of_memory"
    assert sizes[0] == 2 and {*sizes[1:]} == {1}


def test_only_what_the_assistant_says_is_learned() -> None:
    from transformers import AutoTokenizer

    from tenants.tuning.child.encoding import EncodedRow, RowEncoder
    from tenants.tuning.child.rows import row_of

    tokenizer = AutoTokenizer.from_pretrained(BASE)
    said = [*dialogue("Hi", "Ahoy!")["messages"], *dialogue("Bye", "Fair winds!")["messages"]]
    said[1]["weight"] = 0
    encoded = RowEncoder(tokenizer, 64).encode(row_of(jsonl([{"messages": said}]), SUPERVISED))
    assert isinstance(encoded, EncodedRow)
    learned = [id for id, learn in zip(encoded.ids, encoded.learned, strict=True) if learn]
    assert tokenizer.decode(learned) == "Fair winds!<|eos|>"
    whole = "<|bos|><|user|>Hi<|assistant|>Ahoy!<|eos|><|user|>Bye<|assistant|>Fair winds!<|eos|>"
    assert tokenizer.decode(encoded.ids) == whole


@pytest.mark.parametrize(
    ("rows", "changed", "code", "told"),
    [
        ([*ROWS, dialogue(answer="ho " * 200)], {}, "invalid_file", "Line 6: It has"),
        ([*ROWS, {"messages": [dialogue()["messages"][1]]}], {}, "invalid_file", "Line 6"),
        (ROWS, {"max_tokens": 10}, "too_many_tokens", "at most 10 are allowed"),
    ],
    ids=["too long", "empty prompt", "tokens"],
)
def test_what_cannot_be_trained(
    rows: list[Any], changed: dict[str, Any], code: str, told: str
) -> None:
    (failed,) = trained([given("a", task(**changed), rows)])
    assert (failed.kind, failed.code) == ("failed", code) and told in failed.message


def test_a_base_model_without_linear_layers_is_refused() -> None:
    (failed,) = trained([given("a", task())], modules=["c_attn"])
    assert failed.code == "model_not_supported" and "no linear layers" in failed.message
