"""The parity gate: real PEFT in the child process; the engine's numbers are made up here."""

from __future__ import annotations

import json
import os
import shutil
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.files.base import ContentFile
from pytest_django import Settings

from demo import BASE, TINY
from inference.content import CONFIG, FILES, WEIGHTS
from tenants.adapters import parity, sandbox, store
from tenants.adapters.checks.__main__ import TASKS
from tenants.adapters.checks.findings import Code
from tenants.adapters.parity import NotCompared, ParityDifference
from tenants.adapters.probe import ProbeReport
from tenants.adapters.storage import ORIGINALS, storage
from tenants.models import Adapter, AdapterVersion, BaseModel, State, Tenant
from tests.adapters.conftest import GOOD, FakeGateway
from tests.adapters.test_jobs import judged, kept

pytestmark = pytest.mark.usefixtures("no_jobs")
PIRATE = Path(TINY.base).parent / "adapters" / "pirate"
SENT = {name: (PIRATE / name).read_bytes() for name in FILES}
IDS = [5, 17, 40, 3, 8]
PEFT = Code.DIFFERS_FROM_PEFT, "PEFT's"
ZEROS = [0.0] * (len(IDS) - 1)


def probed(base: list[float] = ZEROS, adapted: list[float] = ZEROS) -> ProbeReport:
    fields = GOOD | {"prompts": [{"ids": IDS, "base": base, "adapted": adapted}]}
    return msgspec.convert(fields, ProbeReport)


@pytest.fixture(autouse=True)
def nothing_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "_of_bases", {})


@pytest.fixture
def version(
    tenant: Tenant, base_model: BaseModel, object_storage: Any, settings: Settings
) -> AdapterVersion:
    """A demo adapter, whose base model the worker has."""
    settings.BASE_MODELS = {base_model.name: str(BASE)}
    adapter = Adapter.objects.create(tenant=tenant, name="pirate", base_model=base_model)
    return kept(adapter, SENT[CONFIG], SENT[WEIGHTS])


def expected(adapted: bool) -> list[float]:
    """What transformers and PEFT compute in this process."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    if adapted:
        model = PeftModel.from_pretrained(model, PIRATE)
    with torch.no_grad():
        scores = torch.log_softmax(model.eval()(input_ids=torch.tensor([IDS])).logits[0], dim=-1)
    return [float(scores[at, token]) for at, token in enumerate(IDS[1:])]


def test_an_engine_that_agrees_with_peft_passes(version: AdapterVersion) -> None:
    base, adapted = expected(False), expected(True)
    assert max(abs(one - other) for one, other in zip(base, adapted, strict=True)) > 0.1
    right = parity.compare(version, probed(base, adapted))
    assert right.difference < 1e-4 and right.noise < 1e-4 and right.differs(*PEFT) is None


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tasks run in this process, which has imported torch and PEFT already: it takes seconds."""

    def run(task: Any, files: sandbox.Files, limits: object) -> dict[str, Any]:
        with warnings.catch_warnings(action="ignore"):  # PEFT's, which no child prints
            return TASKS[task["task"]](task, {name: file for name, (file, _) in files.items()})

    monkeypatch.setattr(sandbox, "run", run)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("no_child")
def test_an_engine_that_does_not_agree_is_found(version: AdapterVersion) -> None:
    base, adapted = expected(False), expected(True)
    as_sent = {CONFIG: json.dumps({"fine_tune_type": "lora"}).encode()}  # not PEFT's: not read
    store.save(f"{version.folder}/{ORIGINALS}", [(CONFIG, ContentFile(as_sent[CONFIG]))])
    version.converted = {CONFIG: ["It was mlx-lm's."]}
    assert parity.compare(version, probed(base, base)).difference > 0.1

    config = json.loads(SENT[CONFIG])
    config["lora_alpha"] *= 2
    storage().delete(f"{version.folder}/{ORIGINALS}/{CONFIG}")
    doubled = ContentFile(json.dumps(config).encode())
    store.save(f"{version.folder}/{ORIGINALS}", [(CONFIG, doubled)])
    assert parity.compare(version, probed(base, adapted)).difference > 0.1, "the one sent counts"


@pytest.mark.usefixtures("no_child")
def test_what_a_base_model_computes_is_computed_once(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings
) -> None:
    base = tmp_path / "base"
    shutil.copytree(BASE, base)
    settings.BASE_MODELS = {version.adapter.base_model.name: str(base)}
    asked: list[bool] = []
    run = sandbox.run

    def counted(task: Any, *args: Any) -> dict[str, Any]:
        asked.append(task["with_base"])
        return run(task, *args)

    monkeypatch.setattr(sandbox, "run", counted)
    right = probed(expected(False), expected(True))
    found = [parity.compare(version, right) for _ in range(2)]
    assert asked == [True, False] and found[0] == found[1] and found[0].noise < 1e-4
    os.utime(base / "model.safetensors", ns=(1, 1))  # another model in its place
    parity.compare(version, right)
    assert asked == [True, False, True]


def test_only_one_comparison_computes_at_a_time(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each more would take a core and a model's memory; the next uses what the first one found."""
    assert version.adapter.base_model.name, "loaded here, so that no thread needs the database"
    entered: list[bool] = []
    both_came = threading.Barrier(2)
    stamps = parity._stamps

    def stamped(base: Path) -> Any:
        both_came.wait()
        return stamps(base)

    def reference(*_: Any, with_base: bool) -> dict[str, Any]:
        entered.append(with_base)
        assert entered == [True] or not with_base
        return {"base": [ZEROS], "adapted": [ZEROS], "unable": ""}

    monkeypatch.setattr(parity, "_stamps", stamped)
    monkeypatch.setattr(parity, "_reference", reference)
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda _: parity.compare(version, probed()), range(2)))
    assert entered == [True, False] and found[0] == found[1]


def test_a_new_installation_imports_early_what_its_first_upload_needs(
    tenant: Tenant, base_model: BaseModel, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = []
    monkeypatch.setattr(sandbox.templates, "prepare", lambda *, computes: prepared.append(computes))
    settings.BASE_MODELS = {}
    parity.prepare_first()
    assert not prepared
    settings.BASE_MODELS = {base_model.name: str(BASE)}
    parity.prepare_first()
    assert prepared == [True]
    adapter = Adapter.objects.create(tenant=tenant, name="pirate", base_model=base_model)
    version = kept(adapter, SENT[CONFIG], SENT[WEIGHTS])
    parity.prepare_first()
    assert prepared == [True], "a later start is not slowed by it"
    with parity._computing:
        parity.prepare(version)
    assert prepared == [True], "the next comparison goes on where the one that computes now ends"


def test_what_an_engine_computes_by_itself_is_allowed_for() -> None:
    assert ParityDifference(0.1, 0.03).differs(*PEFT) is None
    finding = ParityDifference(9.0, 0.03).differs(*PEFT)
    assert finding is not None and finding.code == "differs_from_peft"
    assert "by up to 9 (allowed: 0.17)" in finding.message


def test_a_version_that_differs_is_rejected(
    version: AdapterVersion, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "check", lambda _: store.StoreVerdict({"findings": []}, {}))
    found = {"base": [ZEROS], "adapted": [[0.0, -2.0, 0.0, 0.0]], "unable": ""}
    monkeypatch.setattr(parity, "_reference", lambda *_, **__: found)
    prepared = []
    monkeypatch.setattr(sandbox.templates, "prepare", lambda *, computes: prepared.append(computes))
    gateway.say({"prompts": [{"ids": IDS, "base": ZEROS, "adapted": ZEROS}]})
    assert judged(version).state == State.REJECTED
    assert prepared == [True]
    assert [one["code"] for one in version.report["findings"]] == ["differs_from_peft"]
    assert version.report["parity"] == {"difference": 2.0, "allowed": 0.02}
    assert "prompts" not in version.report["probe"]


def quantized(base: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"quantization_config": {}}))


def without_weights(base: Path) -> None:
    (base / "model.safetensors").unlink()


def unreadable(base: Path) -> None:
    (base / "config.json").write_text("[")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (quantized, "weights are quantized"),
        (without_weights, "no safetensors"),
        (unreadable, "config.json can't be read"),
    ],
)
def test_a_base_model_that_cannot_be_computed_is_told(
    version: AdapterVersion, tmp_path: Path, settings: Settings, change: Any, why: str
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((BASE / name).read_bytes())
    change(tmp_path)
    settings.BASE_MODELS = {"tiny": str(tmp_path)}
    with pytest.raises(NotCompared, match=why):
        parity.compare(version, probed())


def test_without_a_base_model_memory_or_numbers_nothing_is_compared(
    version: AdapterVersion, settings: Settings
) -> None:
    with pytest.raises(NotCompared, match="reports no log-probabilities"):
        parity.compare(version, msgspec.convert(GOOD, ProbeReport))
    settings.PARITY_BYTES = 1 << 20
    with pytest.raises(NotCompared, match=r"takes [\d,]+ bytes \(LORIKEET_PARITY_BYTES is 1,048,5"):
        parity.compare(version, probed())
    settings.BASE_MODELS = {"tiny": "nobody/has-this"}
    with pytest.raises(NotCompared, match="has no copy of the base model"):
        parity.compare(version, probed())
    settings.BASE_MODELS = {}
    with pytest.raises(NotCompared, match="LORIKEET_BASE_MODELS does not say"):
        parity.compare(version, probed())


def test_another_base_model_than_the_engines_says_nothing_about_the_adapter(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"base": [[-7.0] * 4], "adapted": [[-7.0] * 4], "unable": ""}
    monkeypatch.setattr(parity, "_reference", lambda *_, **__: found)
    with pytest.raises(NotCompared, match="differ by up to 7"):
        parity.compare(version, probed())


@pytest.mark.usefixtures("no_child")
def test_files_that_peft_cannot_read_are_not_compared(version: AdapterVersion) -> None:
    adapters = storage()
    adapters.delete(f"{version.folder}/{WEIGHTS}")
    adapters.save(f"{version.folder}/{WEIGHTS}", ContentFile(b"nothing"))
    with pytest.raises(NotCompared, match="computing with PEFT failed: "):
        parity.compare(version, probed())
