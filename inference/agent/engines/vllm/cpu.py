"""Fixes for bugs of vLLM on its CPU backend.

1. Isolation and speed: `lora_ops` marks base-model tokens with slot -1 and then indexes
   `weights[-1]`, the last slot, so a base request computes with another tenant's adapter. It also
   copies an adapter's weights once per token. `GroupedPunica` leaves tokens of the base model
   alone and computes the tokens of each adapter in the batch together.
2. Freed KV blocks are not zeroed for plain attention, yet the CPU kernel reads all of a block: NaN
   that one adapter left there comes back as token 0 in another request's answer.
3. vLLM samples after every chunk of a prompt, throws away all but the last sample, and undoes the
   draw of a request with a seed by the offset of its generator. A CPU generator has none, so one
   such request crashes the engine core for everybody. `sample_tokens` makes no such draw.

`install` must run before the engine core is forked; the patched classes travel with the fork.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

Group = tuple[int, torch.Tensor | None]
"""A slot and the rows of the batch that use it; None means every row."""


def install() -> None:
    """Patch this process; may be called again."""
    CpuPlatform.get_punica_wrapper = classmethod(lambda _: f"{__name__}.{GroupedPunica.__name__}")
    KVCacheConfig.needs_kv_cache_zeroing = property(lambda _: True)
    CPUModelRunner.sample_tokens = sample_tokens


def separates(adapters: Any) -> bool:
    """Whether this adapter manager of vLLM computes with `GroupedPunica`, and nothing else."""
    wrappers = adapters.punica_wrapper_mapping.values()
    return bool(wrappers) and all(isinstance(each, GroupedPunica) for each in wrappers)


def sample_tokens(runner: Any, grammar_output: Any) -> Any:
    """vLLM's `GPUModelRunner.sample_tokens`, in which requests in mid-prompt have no generator.

    Their sample then draws from the generator that all requests without a seed share, and there is
    nothing to undo. A request's own generator advances exactly by the draws for tokens that it is
    given, however many draws the sampler makes for one, and however its prompt is computed: in
    chunks, found in the cache, or again after a preemption.

    Mutates `runner.input_batch.generators`, the dictionary that the sampler reads, for this call.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    batch = runner.input_batch
    discarded = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
    held = {row: batch.generators.pop(row) for row in discarded if row in batch.generators}
    try:
        return GPUModelRunner.sample_tokens(runner, grammar_output)
    finally:
        batch.generators.update(held)


def groups_of(slots: torch.Tensor) -> list[Group]:
    """The adapters of a batch by row. `slots` has one slot per row, -1 for the base model."""
    distinct = torch.unique(slots).tolist()
    if len(distinct) == 1:
        return [(distinct[0], None)] if distinct[0] >= 0 else []
    return [(slot, (slots == slot).nonzero().squeeze(1)) for slot in distinct if slot >= 0]


class GroupedPunica(PunicaWrapperCPU):  # type: ignore[misc]  # vLLM is untyped here
    """LoRA arithmetic for all rows of an adapter at once; rows of the base model stay untouched.

    Shapes: rows x features; stacked weights are slots x 1 x out x in, or without the 1.
    `add_lora_linear` serves all layers except those of vLLM's fully sharded LoRA, which call
    `add_shrink` and `add_expand`, and thereby `_apply_shrink` and `_apply_expand`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._by_token: list[Group] = []
        self._by_sample: list[Group] = []

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Called once per step, before the forward pass."""
        super().update_metadata(*args, **kwargs)
        self._by_token = groups_of(self.token_lora_indices)
        self._by_sample = groups_of(self.sampler_indices)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **kwargs: Any,
    ) -> None:
        linear(self._by_token, y, x, lora_a_stacked, lora_b_stacked, scale)

    def _apply_shrink(
        self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, scale: float
    ) -> None:
        shrink(self._by_token, y.view(-1, y.shape[-1]), x, w_t_all, scale)

    def _apply_expand(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        w_t_all: torch.Tensor,
        y_offset: int,
        y_slice_size: int,
        add_inputs: bool = True,
    ) -> None:
        expand(self._by_token, y[:, y_offset : y_offset + y_slice_size], x, w_t_all, add_inputs)

    def add_lora_embedding(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        add_inputs: bool = True,
        **kwargs: Any,
    ) -> None:
        expand(self._by_token, y, x, lora_b_stacked, add_inputs)

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        *,
        buffer: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        if x.shape[0] != self.sampler_indices.shape[0]:
            # Prompt log-probabilities: rows of one request, whose slot vLLM doesn't tell us. No
            # adapter has weights here, because `ModelInfo.modules` never offers the output layer.
            return
        hidden = torch.zeros((x.shape[0], lora_b_stacked.shape[-1]), dtype=torch.float32)
        shrink(self._by_sample, hidden, x, lora_a_stacked, scale)
        expand(self._by_sample, y, hidden, lora_b_stacked, add_inputs=True)


def linear(
    groups: list[Group],
    y: torch.Tensor,
    x: torch.Tensor,
    a_stacked: tuple[torch.Tensor, ...],
    b_stacked: tuple[torch.Tensor, ...],
    scale: float,
) -> None:
    """y[rows] += scale * x[rows] @ A.T @ B.T, for each of the parts side by side that y's columns
    consist of, such as query, key and value. The rows of a part's A are its rank."""
    for slot, rows in groups:
        own = (x if rows is None else x.index_select(0, rows)).float()
        parts = []
        for a, b in zip(a_stacked, b_stacked, strict=True):
            hidden = (own @ _of_slot(a, slot).float().t()).mul_(scale)
            parts.append(hidden.to(y.dtype) @ _of_slot(b, slot).to(y.dtype).t())
        # Few calls: for the few rows of a decoding step they cost more than the arithmetic.
        added = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if rows is None:
            y.add_(added)
        else:
            y.index_add_(0, rows, added)


def shrink(
    groups: list[Group], y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, scale: float
) -> None:
    """y[rows, :rank] = scale * x[rows] @ A.T, in y's dtype (float32)."""
    for slot, rows in groups:
        a = _of_slot(weights, slot).to(y.dtype)
        if rows is None:
            y[:, : a.shape[0]] = scale * (x.to(y.dtype) @ a.t())
        else:
            y[rows, : a.shape[0]] = scale * (x[rows].to(y.dtype) @ a.t())


def expand(
    groups: list[Group], y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, add_inputs: bool
) -> None:
    """y[rows] (+)= x[rows] @ B.T over the columns that both have; vLLM may pad either."""
    width = min(weights.shape[-2], y.shape[1])
    for slot, rows in groups:
        b = _of_slot(weights, slot)[:width].to(y.dtype)
        at = slice(None) if rows is None else rows
        added = x[at].to(y.dtype) @ b.t()
        y[at, :width] = y[at, :width] + added if add_inputs else added


def _of_slot(weights: torch.Tensor, slot: int) -> torch.Tensor:
    matrix = weights[slot]
    return matrix.squeeze(0) if matrix.dim() == 3 else matrix
