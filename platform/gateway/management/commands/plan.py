"""`manage.py plan`: how many engines some traffic needs, and what it costs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from inference import sizing
from inference.process.environ import parse_size
from inference.sizing import BYTES, CannotSize, Device, ModelSize, SizingPlan, Traffic

GB = 1e9
DEVICES = {
    "l4": Device(24 * GB, 300 * GB, 121e12),
    "a10g": Device(24 * GB, 600 * GB, 125e12),
    "l40s": Device(48 * GB, 864 * GB, 362e12),
    "a100": Device(80 * GB, 2039 * GB, 312e12),
    "h100": Device(80 * GB, 3350 * GB, 989e12),
    "h200": Device(141 * GB, 4800 * GB, 989e12),
    "b200": Device(192 * GB, 8000 * GB, 2250e12),
}
"""Memory, bandwidth and dense operations in 16 bits, from the data sheets of their maker."""


class Command(BaseCommand):
    help = (
        "Estimate how many engines some traffic needs, their speed, and what a million tokens "
        "cost. Every assumption is printed; docs/sizing.md explains the arithmetic."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "model", help="a folder with a config.json, or a name in the Hugging Face cache or Hub"
        )
        parser.add_argument("--device", choices=sorted(DEVICES), default="h100")
        parser.add_argument("--memory", type=parse_size, help="of another device, such as 80G")
        parser.add_argument("--bandwidth", type=float, help="in GB/s")
        parser.add_argument("--tflops", type=float, help="dense operations in 16 bits")
        parser.add_argument("--price", type=float, default=0.0, help="of a device for an hour")
        parser.add_argument("--weights", choices=sorted(BYTES), default="bfloat16")
        parser.add_argument("--cache", choices=sorted(BYTES), default="bfloat16")
        parser.add_argument("--requests", type=float, required=True, help="a second, at the peak")
        parser.add_argument("--prompt", type=float, required=True, help="tokens, on average")
        parser.add_argument("--output", type=float, required=True, help="tokens, on average")
        parser.add_argument(
            "--cached", type=float, default=0.0, help="share of prompts in the prefix cache, 0 to 1"
        )
        parser.add_argument("--adapters", type=int, default=0)
        parser.add_argument("--slots", type=int, default=0, help="for adapters, in each engine")
        parser.add_argument("--rank", type=int, default=16)
        parser.add_argument("--zipf", type=float, default=1.0, help="of adapters' popularity")
        parser.add_argument(
            "--load", type=float, default=0.7, help="part of an engine that is used"
        )
        parser.add_argument("--sequences", type=int, default=256, help="at once in an engine")
        parser.add_argument(
            "--cloud", nargs=2, type=float, metavar=("PROMPT", "OUTPUT"),
            help="a service's prices for a million tokens, to compare with",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        device, traffic = _device(options), _traffic(options)
        try:
            model = ModelSize.of(_config(options["model"]))
            found = sizing.plan(
                model, device, traffic, options["weights"], options["cache"], options["sequences"]
            )
        except CannotSize as error:
            raise CommandError(f"{error}.") from None
        cloud = options["cloud"]
        pays = sizing.break_even(found, device, traffic, *cloud) if cloud else None
        if options["json"]:
            told = {"assumed": {"device": asdict(device), "traffic": asdict(traffic)}}
            self.stdout.write(json.dumps(told | {"plan": asdict(found), "break_even": pays}))
            return
        for name, value in _told(model, device, traffic, found):
            self.stdout.write(f"{name:<42}{value}")
        if pays is not None:
            self.stdout.write(f"{'Cheaper than the service from':<42}{_break_even(pays)}")


def _config(model: str) -> dict[str, Any]:
    folder = Path(model)
    try:
        if not (folder / "config.json").is_file():
            from huggingface_hub import hf_hub_download

            folder = Path(hf_hub_download(model, "config.json")).parent
        found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"{model}: its config.json cannot be read: {error}") from None
    return dict(found.get("text_config", found))


def _device(options: dict[str, Any]) -> Device:
    known = DEVICES[options["device"]]
    given = {
        "memory": options["memory"],
        "bandwidth": options["bandwidth"] and options["bandwidth"] * GB,
        "flops": options["tflops"] and options["tflops"] * 1e12,
        "price": options["price"],
    }
    _require("--memory, --bandwidth, --tflops", *(known.memory, *filter(None, given.values())))
    return replace(known, **{name: value for name, value in given.items() if value is not None})


def _traffic(options: dict[str, Any]) -> Traffic:
    _require(
        "--prompt, --output, --sequences", *(options[n] for n in ("prompt", "output", "sequences"))
    )
    for name, low, high in (
        ("requests", 0, 1e9), ("cached", 0, 1), ("load", 0.01, 0.99), ("adapters", 0, 10**6),
        ("slots", 0, 10**6), ("rank", 1, 1024), ("zipf", 0, 5),
    ):  # fmt: skip
        if not low <= options[name] <= high:
            raise CommandError(f"--{name} is {options[name]}: it must be from {low} to {high}.")
    return Traffic(
        requests_s=options["requests"],
        slots=min(options["slots"], options["adapters"]),
        **{
            n: options[n]
            for n in ("prompt", "output", "cached", "adapters", "rank", "zipf", "load")
        },
    )


def _require(names: str, *values: float) -> None:
    if not all(value > 0 for value in values):
        raise CommandError(f"{names} must be more than 0.")


def _told(
    model: ModelSize, device: Device, traffic: Traffic, found: SizingPlan
) -> list[tuple[str, str]]:
    rows = [
        ("Parameters", f"{model.parameters:,}"),
        ("Weights", f"{found.weights / GB:.2f} GB of {device.memory / GB:.0f} GB"),
        ("Cache of a token", f"{found.kv_token / 1024:.1f} KiB"),
        (
            "Assumed: bandwidth reached",
            f"{device.bandwidth_share:.0%} of {device.bandwidth / GB:,.0f} GB/s",
        ),
        (
            "Assumed: operations reached",
            f"{device.flops_share:.0%} of {device.flops / 1e12:,.0f} TFLOPS",
        ),
        ("Assumed: each step takes besides", f"{device.step_s * 1000:.1f} ms"),
        ("Assumed: part of an engine that is used", f"{traffic.load:.0%}"),
        ("Sequences at once in an engine", f"{found.sequences:,}"),
        ("Generated by a full engine", f"{found.tokens_s:,.0f} tokens/s"),
        ("Requests of a full engine", f"{found.capacity:.2f} /s"),
        ("Engines", f"{found.engines:,}"),
        ("Time to the first token, when full", f"{found.ttft_s * 1000:,.0f} ms on average"),
        ("Time of each next token, when full", f"{found.tpot_s * 1000:,.1f} ms on average"),
    ]
    if traffic.adapters:
        rows += [
            ("An adapter in a slot", f"{found.adapter / 1e6:.1f} MB"),
            ("Requests whose adapter has a slot", f"{found.resident:.1%}"),
        ]
    if device.price:
        rows.append(("A million tokens, at this traffic", f"{found.cost_million:.3f}"))
    return rows


def _break_even(requests: float) -> str:
    if requests == float("inf"):
        return "never, with these prices"
    return f"{requests:.2f} requests/s, with one engine"
