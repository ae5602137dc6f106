"""`manage.py plan`: how many engines some traffic needs, and what it costs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from inference import sizing
from inference.process.environ import parse_size
from inference.sizing import BYTES, DEVICES, GB, CannotSize, Device, EngineSpeed, ModelSize, Traffic
from tenants.busiest_hour import busiest_hour


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
        parser.add_argument(
            "--speed", type=Path, metavar="FILE",
            help="measured by `manage.py calibrate`, instead of bandwidth and operations",
        )  # fmt: skip
        parser.add_argument("--price", type=float, default=0.0, help="of a device for an hour")
        parser.add_argument("--weights", choices=sorted(BYTES), default="bfloat16")
        parser.add_argument("--cache", choices=sorted(BYTES), default="bfloat16")
        parser.add_argument("--requests", type=float, help="a second, at the peak")
        parser.add_argument("--prompt", type=float, help="tokens, on average")
        parser.add_argument("--output", type=float, help="tokens, on average")
        parser.add_argument("--cached", type=float, help="share of prompts in the prefix cache")
        parser.add_argument(
            "--history", action="store_true",
            help="take what is not given from this installation's busiest hour of the last 7 days",
        )  # fmt: skip
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
            speed = _speed(options["speed"])
            model = ModelSize.of(config_of(options["model"]))
            found = sizing.plan(
                model, device, traffic, options["weights"], options["cache"],
                options["sequences"], speed,
            )  # fmt: skip
        except CannotSize as error:
            raise CommandError(f"{error}.") from None
        cloud = options["cloud"]
        pays = sizing.break_even(found, device, traffic, *cloud) if cloud else None
        if options["json"]:
            body = {"assumed": {"device": asdict(device), "traffic": asdict(traffic)}}
            if speed:
                body["measured"] = asdict(speed)
            self.stdout.write(json.dumps(body | {"plan": asdict(found), "break_even": pays}))
            return
        for name, value in sizing.described(model, device, traffic, found, pays, speed):
            self.stdout.write(f"{name:<42}{value}")


def config_of(model: str) -> dict[str, Any]:
    """The `config.json` of a folder, or of a model in the Hugging Face cache or Hub."""
    folder = Path(model)
    try:
        if not (folder / "config.json").is_file():
            from huggingface_hub import hf_hub_download

            folder = Path(hf_hub_download(model, "config.json")).parent
        found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"{model}: its config.json cannot be read: {error}") from None
    return dict(found.get("text_config", found))


def _speed(file: Path | None) -> EngineSpeed | None:
    if file is None:
        return None
    try:
        return EngineSpeed.read(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--speed: {file} cannot be read: {error}") from None


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
    known: dict[str, float] = {"cached": 0.0}
    if options["history"]:
        if (busiest := busiest_hour()) is None:
            raise CommandError("--history: no request was answered within the last 7 days.")
        known = asdict(busiest)
    for name in ("requests", "prompt", "output", "cached"):
        if options[name] is None:
            if name not in known:
                raise CommandError(f"--{name} is required without --history.")
            options[name] = known[name]
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
