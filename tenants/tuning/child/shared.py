"""One frozen base model that many adapters share: each row of a pass goes through its own adapter,
all of them through the base at once (grouped LoRA)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from tenants.tuning.child.encoding import EncodedRow
from tenants.tuning.child.optimising import write_adapter
from tenants.tuning.child.protocol import CannotTrain, SharedTask


@dataclass(eq=False)
class LoraWeights:
    """An adapter in training: float32 matrices A [rank, in] and B [out, rank] of each layer that is
    adapted."""

    a: list[nn.Parameter]
    b: list[nn.Parameter]

    @cached_property
    def all(self) -> list[nn.Parameter]:
        """Layer after layer, A before B."""
        return [one for pair in zip(self.a, self.b, strict=True) for one in pair]


Part = tuple[LoraWeights | None, Sequence[EncodedRow]]
"""Rows that pass together, through an adapter or the base model alone."""


@dataclass
class Passing:
    """What passes through the layers: the adapters, and the number of that of each row. None: the
    base model's own answers. One: it sees everything, whatever its shape."""

    owners: list[LoraWeights]
    of_rows: torch.Tensor


class AdaptedLinear(nn.Module):
    """`linear`, to whose output [rows, tokens, out] each row's own adapter adds."""

    def __init__(self, linear: nn.Linear, at: int, scaling: float, passing: Passing) -> None:
        super().__init__()
        self.linear, self.at, self.scaling, self.passing = linear, at, scaling, passing

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(inputs)
        owners, at = self.passing.owners, self.at
        if not owners:
            return output
        inputs = inputs.to(owners[0].a[at].dtype)
        if len(owners) == 1:
            (own,) = owners
            added = F.linear(self.scaling * F.linear(inputs, own.a[at]), own.b[at])
        else:
            a = torch.stack([own.a[at] for own in owners]).index_select(0, self.passing.of_rows)
            b = torch.stack([own.b[at] for own in owners]).index_select(0, self.passing.of_rows)
            added = torch.bmm(self.scaling * torch.bmm(inputs, a.mT), b.mT)
        return output + added.to(output.dtype)


class SharedBase:
    """The base model of a task.

    Raises:
        CannotTrain: it has no layers to adapt.
    """

    def __init__(self, task: SharedTask) -> None:
        self.task = task
        self.dtype = torch.float32 if task.device == "cpu" else torch.bfloat16
        model: Any = AutoModelForCausalLM.from_pretrained(
            task.base, dtype=self.dtype, local_files_only=True, use_safetensors=True
        )
        self.tokenizer: Any = AutoTokenizer.from_pretrained(task.base, local_files_only=True)
        self._model = model.to(task.device).eval().requires_grad_(False)
        self._passing = Passing([], torch.tensor([]))
        self._layers = dict(self._adapted())
        if not self._layers:
            message = "This base model has no linear layers to adapt."
            raise CannotTrain("model_not_supported", message)

    def _adapted(self) -> Iterator[tuple[str, AdaptedLinear]]:
        """Replace the linear layers that can carry an adapter, but for the output."""
        wanted = {*self.task.modules} - {"lm_head"}
        scaling = self.task.alpha / self.task.rank
        found = [
            (name, module)
            for name, module in self._model.named_modules()
            if isinstance(module, nn.Linear) and name.rpartition(".")[2] in wanted
        ]
        for at, (name, module) in enumerate(found):
            layer = AdaptedLinear(module, at, scaling, self._passing)
            self._model.set_submodule(name, layer)
            yield name, layer

    def new_adapter(self, seed: int) -> LoraWeights:
        """One that changes nothing yet, drawn as PEFT draws it."""
        random = torch.Generator().manual_seed(seed)
        weights = LoraWeights([], [])
        for layer in self._layers.values():
            a = torch.empty(self.task.rank, layer.linear.in_features)
            nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=random)
            b = torch.zeros(layer.linear.out_features, self.task.rank)
            weights.a.append(nn.Parameter(a.to(self.task.device)))
            weights.b.append(nn.Parameter(b.to(self.task.device)))
        return weights

    def save(self, weights: LoraWeights, folder: Path) -> None:
        """Write the adapter's two files as PEFT does, in the type of the base model's weights."""
        names = [
            f"base_model.model.{name}.lora_{one}.weight" for name in self._layers for one in "AB"
        ]
        config = LoraConfig(
            r=self.task.rank,
            lora_alpha=self.task.alpha,
            target_modules=sorted({name.rpartition(".")[2] for name in self._layers}),
            task_type="CAUSAL_LM",
        )
        tensors = dict(zip(names, (one.data for one in weights.all), strict=True))
        write_adapter(tensors, config, folder, self.task.base_name, self.dtype)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the digests of its safetensors files, in the order of their names."""
        digests = []
        for path in sorted(Path(self.task.base).glob("*.safetensors")):
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()

    @cached_property
    def can_be_shared(self) -> bool:
        """Whether each adapted layer sees whole rows, which a layer of routed experts does not."""
        shapes = set()
        watched = [
            layer.register_forward_pre_hook(lambda _, inputs: shapes.add(inputs[0].shape[:-1]))
            for layer in self._layers.values()
        ]
        with torch.no_grad():
            self._model(input_ids=torch.zeros(3, 2, dtype=torch.long, device=self.task.device))
        for one in watched:
            one.remove()
        return shapes == {torch.Size((3, 2))}

    def surprises(self, parts: Sequence[Part]) -> list[torch.Tensor]:
        """Of each part, the negative log-likelihood of what is learned of each of its rows [rows],
        in nats. The parts pass at once, all of them with an adapter, or all without. Padding is on
        the right, where a causal model does not look."""
        rows = [row for _, own in parts for row in own]
        length, device = max(row.tokens for row in rows), self.task.device
        ids = _padded([row.ids for row in rows], length, 0).to(device)
        learned = _padded([row.learned for row in rows], length, False)[:, 1:]
        places = learned.any(0).nonzero()[:, 0].to(device)
        chosen = learned.to(device)[:, places]
        sizes = [len(own) for _, own in parts]
        self._passing.owners = [weights for weights, _ in parts if weights is not None]
        numbers = [at for at, size in enumerate(sizes) for _ in range(size)]
        self._passing.of_rows = torch.tensor(numbers, device=device)
        output = self._model(input_ids=ids, use_cache=False, logits_to_keep=places)
        logits, following = output.logits[chosen], ids[:, 1:][:, places][chosen]
        found = F.cross_entropy(logits.float(), following, reduction="none")
        sums = torch.zeros(len(rows), device=device).index_add(0, chosen.nonzero()[:, 0], found)
        return list(torch.split(sums, sizes))

    def log_probabilities(self, ids: list[int], weights: LoraWeights | None) -> list[float]:
        """Of each token but the first."""
        self._passing.owners = [weights] if weights is not None else []
        with torch.no_grad():
            whole = torch.tensor([ids], device=self.task.device)
            logits = self._model(input_ids=whole, use_cache=False).logits[0, :-1]
            found = -F.cross_entropy(logits.float(), whole[0, 1:], reduction="none")
        return [round(one, 6) for one in found.tolist()]


def _padded(rows: Sequence[Sequence[Any]], length: int, filler: Any) -> torch.Tensor:
    return torch.tensor([[*row, *[filler] * (length - len(row))] for row in rows])
