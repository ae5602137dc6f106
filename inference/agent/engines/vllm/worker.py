"""What Lorikeet runs inside vLLM's worker processes; vLLM mixes this class into its own worker."""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing import connection, parent_process
from typing import Any

from vllm.platforms import current_platform

EXTENSION = f"{__name__}.AdapterInspector"
"""The value of vLLM's `worker_extension_cls`."""


class AdapterInspector:
    """Methods for `collective_rpc`; each answers per worker. No attribute may clash with vLLM's."""

    def lorikeet_follow_parent(self) -> None:
        """End this process when its parent dies, kill -9 included.

        vLLM doesn't do that when its model runs inside the engine core: an orphan would keep the
        memory.
        """
        if (parent := parent_process()) is not None:
            threading.Thread(target=_die_with, args=(parent.sentinel,), daemon=True).start()

    def lorikeet_resumes(self) -> bool:
        """Whether this process can continue answers of other engines: one that vLLM spawned, and
        did not fork, has none of our patches."""
        resume = sys.modules.get("inference.agent.engines.vllm.resume")
        return resume is not None and resume.is_installed()

    def lorikeet_separates(self) -> bool:
        """Whether this process keeps adapters apart, which vLLM itself doesn't on a CPU."""
        if not current_platform.is_cpu():
            return True
        from inference.agent.engines.vllm import cpu

        return cpu.separates(self._lorikeet_adapters())

    def lorikeet_adapter_modules(self) -> list[str]:
        """The dotted paths of the modules that can carry an adapter, packed ones split up."""
        adapters = self._lorikeet_adapters()
        names: list[str] = []
        for module in adapters.modules:
            parent, _, leaf = module.rpartition(".")
            parts = adapters.packed_modules_mapping.get(leaf, [leaf])
            names += [f"{parent}.{part}" if parent else part for part in parts]
        return names

    def lorikeet_adapter_bytes(self, int_id: int) -> int | None:
        """The size of a loaded adapter's weights in bytes.

        None if it isn't loaded or none of its weights belong to a module of this model: vLLM then
        answers with the base model and says nothing.
        """
        adapters = self._lorikeet_adapters()
        if (adapter := adapters.get_adapter(int_id)) is None:
            return None
        if not any(adapters._get_lora_layer_weights(adapter, name) for name in adapters.modules):
            return None
        layers = adapter.loras.values()
        return sum(_bytes(layer.lora_a) + _bytes(layer.lora_b) for layer in layers)

    def _lorikeet_adapters(self) -> Any:
        return self.model_runner.lora_manager._adapter_manager  # type: ignore[attr-defined]


def _die_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _bytes(weights: Any) -> int:
    """A tensor's size, or that of a packed layer's list, in which a part may be missing."""
    if weights is None:
        return 0
    if isinstance(weights, list | tuple):
        return sum(map(_bytes, weights))
    return int(weights.numel() * weights.element_size())
