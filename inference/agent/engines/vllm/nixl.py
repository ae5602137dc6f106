"""vLLM's NIXL connector, in a form that never reads another tenant's or adapter's keys and values.

vLLM's own form reads the blocks whose numbers it is given, and does not ask what is in them:

1. The prompt may be another one. So a prefill engine adds a digest of the tenant's salt, the
   adapter and the tokens, and a decode engine compares it with those of its own request.
2. The prefill engine may have freed the blocks, and they may hold another tenant's prompt, if the
   decode engine comes too late; vLLM only logs that, on the other engine. So nothing is read after
   the time at which the lease may have ended, and what was read until then or later is dropped.

In both cases the decode engine computes the prompt itself.

vLLM's scheduler and its workers each make one `NixlConnector`, by this module's name
(`kv_connector_module_path`).
"""

from __future__ import annotations

import logging
import time
from array import array
from hashlib import sha256
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
    NixlPullConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

log = logging.getLogger(__name__)


class NixlConnector(NixlPullConnector):  # type: ignore[misc]  # vLLM is untyped here
    """Named as vLLM's own, because vLLM asks for that name in places."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """As vLLM's.

        Raises:
            ValueError: the model has several kinds of KV cache, of which vLLM would use blocks that
                it failed to read.
        """
        super().__init__(vllm_config, role, kv_cache_config)
        if role is KVConnectorRole.SCHEDULER:
            self.connector_scheduler = CheckingScheduler(
                vllm_config, self.engine_id, kv_cache_config
            )
            if self.connector_scheduler._is_hma_required:
                raise ValueError(
                    "models with sliding windows or state can't be divided into prefill and decode"
                )
        else:
            self.connector_worker = LeasedWorker(vllm_config, self.engine_id, kv_cache_config)


class CheckingScheduler(NixlPullConnectorScheduler):  # type: ignore[misc]
    """Fetches only what was computed for the same tenant, adapter and tokens."""

    def on_new_request(self, request: Any) -> None:
        """Called for each request, before anything is fetched for it."""
        params = request.kv_transfer_params
        if (params or {}).get("do_remote_prefill") and params["prompt"] != prompt_digest(request):
            log.warning("a handover of another prompt is not used: %s", request.request_id)
            request.kv_transfer_params = None
        super().on_new_request(request)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Called at its end: what a decode engine has to know, if anything is kept for it."""
        kept, params = super().request_finished(request, block_ids)
        if kept and params is not None:
            params["prompt"] = prompt_digest(request)
        return kept, params


def prompt_digest(request: Any) -> str:
    """SHA-256 (hex) of what the keys and values of a prompt depend on. vLLM's name of an adapter is
    `tenant/adapter@digest`, and the salt has the adapter's digest too (`EngineWork.cache_salt`)."""
    adapter = request.lora_request.lora_name if request.lora_request else ""
    whose = f"{request.cache_salt or ''}\0{adapter}\0".encode()
    return sha256(whose + array("I", request.prompt_token_ids or ()).tobytes()).hexdigest()


class LeasedWorker(NixlPullConnectorWorker):  # type: ignore[misc]
    """Reads only while the other engine still keeps the blocks (`remote_blocks_expiry_time`, here
    on this machine's clock)."""

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        """Called when a request's blocks are to be read, and again after each handshake."""
        if _is_over(meta):
            self._handle_failed_transfer(
                req_id, None, self._recv_failures, record_failed_transfer=False
            )
        else:
            super()._read_blocks_for_req(req_id, meta)

    def _pop_done_transfers(self, transfers: dict[str, Any]) -> tuple[set[str], set[str]]:
        """Called in each step: the requests whose blocks were read, and those that failed."""
        done, failed = super()._pop_done_transfers(transfers)
        late = {id for id in done if _is_over(self._recving_metadata.get(id))}
        if late:
            log.warning("blocks that were read too late are not used: %s", ", ".join(late))
        return done, failed | late


def _is_over(meta: Any) -> bool:
    """Whether the blocks may have been freed; a request without a time has none to read."""
    until = None if meta is None or meta.remote is None else meta.remote.blocks_expiry_time
    return until is None or time.perf_counter() >= until
