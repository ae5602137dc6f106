"""Loading adapters for a short time, as vLLM has it."""

from __future__ import annotations

from tenants.api.openai.shapes.base import Open


class LoadAdapterRequest(Open):
    """`lora_path` is the id of a file: an archive of the adapter's folder. `load_inplace` replaces
    what the name answers with. The last two fields are ours."""

    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False
    is_3d_lora_weight: bool = False
    base_model: str = ""
    confirm_base_model: bool = False


class UnloadAdapterRequest(Open):
    """`lora_int_id` is not read, as in vLLM."""

    lora_name: str = ""
    lora_int_id: int | None = None
