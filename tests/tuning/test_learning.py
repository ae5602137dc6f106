"""The training loop on the demo's base model, in this process: it learns what it should, and going
on from a saved state changes no bit."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from demo import BASE, MODEL_NAME
from inference.content import FILES
from tenants.tuning.child.protocol import (
    RESULT,
    STATE,
    TRAINING,
    VALIDATION,
    TuningProgress,
    TuningTask,
)
from tenants.tuning_states import SUPERVISED
from tests.tuning.conftest import ROWS, dialogue, jsonl

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
        "base": str(BASE), "base_name": MODEL_NAME, "device": "cpu", "threads": 1, "seed": 7,
        "method": "supervised", "beta": 0.2,
        "modules": ["q_proj", "v_proj", "lm_head"], "rank": 4, "alpha": 8, "n_epochs": 2,
        "batch_size": 2, "rate": 4e-3, "max_row_tokens": 128, "max_tokens": 10_000,
        "save_every_s": 0,
    }  # fmt: skip
    return TuningTask(**(given | changed))


@pytest.fixture(autouse=True)
def threads() -> Any:
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with rows to train on."""
    (tmp_path / TRAINING).write_bytes(jsonl(ROWS))
    (tmp_path / VALIDATION).write_bytes(jsonl(ROWS[:2]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(asked: TuningTask, steps: int = STEPS) -> list[TuningProgress]:
    """The messages of a training that is stopped after so many steps."""
    from tenants.tuning.child import learning

    said: list[TuningProgress] = []
    left = iter(range(steps - 1))
    try:
        learning.train(asked, said.append, lambda: next(left, None) is not None)
    except learning.Stopped:
        pass
    return said


def result(folder: Path) -> list[bytes]:
    return [(folder / RESULT / name).read_bytes() for name in FILES]


@pytest.mark.parametrize(("method", "rows"), [("supervised", ROWS), ("dpo", PAIRS)])
def test_it_learns_and_goes_on_bit_for_bit(folder: Path, method: str, rows: list[Any]) -> None:
    (folder / TRAINING).write_bytes(jsonl(rows))
    (folder / VALIDATION).write_bytes(jsonl(rows[:2]))
    whole = trained(task(method=method))
    assert whole[0] == TuningProgress(kind="started", total_steps=STEPS)
    assert whole[-1].kind == "trained" and len(whole[-1].base_sha256) == 64
    metrics = [one for one in whole if one.kind == "metrics"]
    assert [one.step for one in metrics] == list(range(1, STEPS + 1))
    first, last = (one.metrics for one in metrics if one.ends_epoch)
    assert last["full_valid_loss"] < first["full_valid_loss"]
    undisturbed = result(folder)

    shutil.rmtree(RESULT)
    stopped = trained(task(method=method), 4)
    assert stopped[-1] == TuningProgress(kind="state", file="state-4.safetensors")
    assert not Path(RESULT).exists()
    Path("state-4.safetensors").rename(STATE)
    rest = trained(task(method=method))
    assert rest[0] == TuningProgress(kind="started", step=4, total_steps=STEPS)
    assert [one for one in rest if one.kind == "metrics"] == metrics[4:]
    assert result(folder) == undisturbed


def test_preferences_have_the_loss_of_dpo(folder: Path) -> None:
    """Against the formula of its paper, from whole logits of each dialogue alone."""
    import torch
    import torch.nn.functional as F
    from transformers import AutoTokenizer

    from tenants.tuning.child import learning
    from tenants.tuning.child.encoding import EncodedPair, RowEncoder

    (folder / TRAINING).write_bytes(jsonl(PAIRS))
    asked = task(method="dpo")
    learner = learning.PreferenceLearner(asked)
    encoder = RowEncoder(AutoTokenizer.from_pretrained(BASE), 128)
    pairs = learning.encoded(Path(TRAINING), encoder, "dpo", "training_file")
    assert learner.examine(pairs) == pytest.approx(math.log(2)), "an adapter that changes nothing"
    torch.manual_seed(1)
    for weight in learner.weights:
        weight.data += 0.05 * torch.randn_like(weight)

    def likelihood(row: Any) -> torch.Tensor:
        logits = learner.adapted(input_ids=torch.tensor([row.ids])).logits[0, :-1]
        said = F.log_softmax(logits, -1).gather(1, torch.tensor(row.ids[1:])[:, None])[:, 0]
        return said[torch.tensor(row.learned[1:])].sum()

    def margin(pair: EncodedPair) -> torch.Tensor:
        return likelihood(pair.preferred) - likelihood(pair.other)

    with torch.no_grad():
        ours = [margin(pair) for pair in pairs if isinstance(pair, EncodedPair)]
        with learner.adapted.disable_adapter():
            base = [margin(pair) for pair in pairs if isinstance(pair, EncodedPair)]
    losses = [-F.logsigmoid(asked.beta * (a - b)) for a, b in zip(ours, base, strict=True)]
    assert learner.examine(pairs) == pytest.approx(float(sum(losses)) / len(pairs), rel=1e-4)
    assert learner.examine(pairs) != pytest.approx(math.log(2), rel=1e-3)


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
        (ROWS, {"modules": ["c_attn"]}, "model_not_supported", "no linear layers"),
        (ROWS, {"rate": 1e30}, "loss_not_finite", "lower learning rate"),
    ],
    ids=["too long", "empty prompt", "tokens", "modules", "rate"],
)
def test_what_cannot_be_trained(
    folder: Path, rows: list[Any], changed: dict[str, Any], code: str, told: str
) -> None:
    from tenants.tuning.child.learning import CannotTrain

    (folder / TRAINING).write_bytes(jsonl(rows))
    with pytest.raises(CannotTrain) as raised:
        trained(task(**changed))
    assert raised.value.code == code and told in raised.value.message
