"""`manage.py load`: its options; `inference.load` does the work."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.start import var_folder
from inference.load import arrivals, lengths
from inference.load.callers import LoadCaller, read_callers
from inference.load.endpoint import HTTPEndpoint
from inference.load.figures import LatencyTargets
from inference.load.page import page
from inference.load.planned import MOST_REQUESTS, BadLoadPlan, PlannedRequest
from inference.load.prompts import PromptText
from inference.load.report import TrafficReport
from inference.load.scenarios import CallerChoice, LoadScenario, TenantFlood, replay
from inference.load.sending import LoadRefused, LoadRun
from inference.load.traces import read_trace

PROGRESS_S = 0.5
"""Between two updates of the progress on a terminal."""
PROGRESS_ELSEWHERE_S = 10.0


def main(arguments: list[str] | None = None) -> None:
    """Plan, send and report; the exit status is 1 if nothing was answered."""
    options = _parser().parse_args(arguments)
    try:
        callers = read_callers(options.tenants)
        plan = _plan(options, callers)
        if not plan:
            raise BadLoadPlan(
                "the plan has no requests: give a longer --duration or a higher --rate"
            )
        report = _run(options, {one.tenant: one for one in callers}, plan)
    except (BadLoadPlan, LoadRefused) as error:
        sys.exit(f"lorikeet load: {error}")
    Console(width=max(160, Console().width)).print(report.table())
    for name, value in report.facts():
        print(f"{name + ':':<28}{value}")
    for note in report.notes:
        print(f"Note: {note}")
    print(f"Written to {_written(report, options.out)}/report.html and report.json.")
    sys.exit(0 if report.total.answered else 1)


def _written(report: TrafficReport, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text(page(report))
    (folder / "report.json").write_text(json.dumps(report.as_json(), indent=1))
    return folder


# --- The plan -------------------------------------------------------------------------------------


def _plan(options: argparse.Namespace, callers: list[LoadCaller]) -> list[PlannedRequest]:
    if options.trace:
        choice = CallerChoice(callers, options.tenants_zipf, options.models_zipf)
        rows = read_trace(options.trace, options.limit)
        replayed = replay(
            rows, choice, speed=options.speed, shrink=options.shrink,
            longest=options.longest, seed=options.seed,
        )  # fmt: skip
        return list(replayed)
    scenario = LoadScenario(
        callers=callers,
        times=_times(options),
        rate=options.rate,
        duration_s=options.duration,
        lengths=_lengths(options),
        flood=_flood(options, callers),
        **{
            name: getattr(options, name)
            for name in (
                "tenants_zipf", "models_zipf", "prefix_tokens", "turns", "think_s",
                "follow_up_tokens", "longest", "thrash", "seed",
            )
        },
    )  # fmt: skip
    return scenario.plan()[: options.limit]


def _times(options: argparse.Namespace) -> Callable[[float, int], arrivals.Arrivals]:
    bursts = arrivals.BurstyArrivals(options.burst_factor, options.burst_share, options.burst_s)
    processes: dict[str, Callable[[float, int], arrivals.Arrivals]] = {
        "poisson": arrivals.poisson,
        "gamma": partial(arrivals.gamma, variation=options.variation),
        "bursts": bursts.at,
        "even": arrivals.even,
    }
    return processes[options.arrivals]


def _lengths(options: argparse.Namespace) -> lengths.LengthFigures:
    if options.prompt_tokens and options.output_tokens:
        return lengths.fixed(options.prompt_tokens, options.output_tokens)
    if options.prompt_tokens or options.output_tokens:
        raise BadLoadPlan("--prompt-tokens and --output-tokens go together")
    return lengths.PUBLIC[options.lengths].shrunk(options.shrink)


def _flood(options: argparse.Namespace, callers: list[LoadCaller]) -> TenantFlood | None:
    if options.flood is None:
        return None
    for caller in callers:
        if caller.tenant == options.flood:
            return TenantFlood(caller, options.flood_rate, options.flood_from, options.flood_for)
    raise BadLoadPlan(f"--flood {options.flood}: {options.tenants} has no such tenant")


# --- Sending --------------------------------------------------------------------------------------


def _run(
    options: argparse.Namespace, callers: dict[str, LoadCaller], plan: list[PlannedRequest]
) -> TrafficReport:
    found: list[LoadRun] = []
    # What was sent until somebody interrupts it is reported.
    with (
        contextlib.suppress(KeyboardInterrupt),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_send(options, callers, plan, found))
    if not found:
        sys.exit(130)
    targets = LatencyTargets(options.slo_ttft, options.slo_tpot, options.slo_e2e)
    return TrafficReport(_about(options, plan), targets, found[0].outcomes, found[0].wall_s)


async def _send(
    options: argparse.Namespace,
    callers: dict[str, LoadCaller],
    plan: list[PlannedRequest],
    found: list[LoadRun],
) -> None:
    salt = options.salt if options.salt is not None else secrets.token_hex(4)
    endpoint = HTTPEndpoint(
        options.base_url, callers, PromptText(salt), ignore_eos=options.ignore_eos
    )
    async with contextlib.aclosing(endpoint):
        await endpoint.measure(callers[plan[0].tenant])
        run = LoadRun(endpoint, options.concurrency, options.timeout)
        found.append(run)
        progress = asyncio.create_task(_tell(run, len(plan)))
        try:
            await run.send(plan)
        finally:
            progress.cancel()


async def _tell(run: LoadRun, total: int) -> None:
    """Show on standard error how far it is, until cancelled."""
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        while True:
            text = f"{run.ended:,} of {total:,}, {run.in_flight:,} in flight, {run.failed:,} failed"
            progress.update(task, completed=run.ended, description=text)
            if not console.is_terminal:
                print(text, file=sys.stderr, flush=True)
            await asyncio.sleep(PROGRESS_S if console.is_terminal else PROGRESS_ELSEWHERE_S)


def _about(options: argparse.Namespace, plan: list[PlannedRequest]) -> dict[str, str]:
    """What was sent where, without secrets."""
    if options.trace:
        what = f"{options.trace.name}, {options.speed:g} times as fast"
    else:
        what = f"{options.arrivals} arrivals, {options.rate:g}/s for {options.duration:g} s"
        what += f"; lengths: {_lengths(options).source}"
        what += ", all models in turn" if options.thrash else ""
        what += f"; {options.flood} floods" if options.flood else ""
    mean = [sum(values) / len(plan) for values in (
        (one.prompt_tokens for one in plan), (one.output_tokens for one in plan)
    )]  # fmt: skip
    shrunk = f", lengths divided by {options.shrink}" if options.shrink > 1 else ""
    return {
        "Endpoint": options.base_url,
        "Began": time.strftime("%Y-%m-%d %H:%M:%S%z"),
        "Traffic": what + shrunk,
        "Planned": f"{len(plan):,} requests in {plan[-1].at_s:,.1f} s; on average {mean[0]:,.0f} "
        f"tokens of prompt, {mean[1]:,.0f} of answer",
        "Popularity": f"by Zipf: tenants {options.tenants_zipf:g}, models {options.models_zipf:g}",
        "Seed": str(options.seed),
    }


# --- Options --------------------------------------------------------------------------------------


def number(low: float, high: float, of: type[int] | type[float] = float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = of(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not from {low:g} to {high:g}")
        return value

    parse.__name__ = of.__name__  # argparse names it if the text is no number
    return parse


def url(text: str) -> str:
    found = urlsplit(text)
    if found.scheme not in ("http", "https") or not found.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not an http:// or https:// address")
    if found.username or found.password:
        raise argparse.ArgumentTypeError("keys belong into the file of --tenants")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="manage.py load",
        description=(
            "Send traffic to an OpenAI endpoint, each request at its planned time however slow the "
            "endpoint is, and report latencies from that time: a table here, report.html and "
            "report.json. The exit status is 0 if anything was answered."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    seconds, count = number(0.001, 1e6), number(1, MOST_REQUESTS, int)
    add = parser.add_argument
    add("--base-url", required=True, type=url, help="of the API, such as http://host/v1")
    add("--tenants", required=True, type=Path, metavar="FILE", help="TOML: [tenant], key, models")
    add("--out", type=Path, default=var_folder() / "load", metavar="FOLDER", help="for the report")
    add("--limit", type=count, default=100_000, help="requests at most")
    add("--concurrency", type=number(1, 100_000, int), default=1000,
        help="requests in flight at most; what comes then is counted as not sent")  # fmt: skip
    add("--timeout", type=seconds, default=120.0, help="seconds from a request's planned time")
    add("--ignore-eos", action=argparse.BooleanOptionalAction, default=True,
        help="ask for answers of exactly the planned length, by a field of vLLM's")  # fmt: skip
    add("--seed", type=number(0, 1 << 31, int), default=0, help="of times, lengths and choices")
    add("--salt", help="of the prompts' text; by default new each time, so that nothing is cached")
    _add_targets(parser.add_argument_group("targets of a good answer"), seconds)
    _add_traffic(parser.add_argument_group("traffic"), seconds)
    _add_scenario(parser.add_argument_group("traffic without --trace"), seconds)
    return parser


def _add_targets(group: argparse._ArgumentGroup, seconds: Callable[[str], float]) -> None:
    for name, what in (
        ("--slo-ttft", "the first text"),
        ("--slo-tpot", "each further token"),
        ("--slo-e2e", "the end"),
    ):
        group.add_argument(name, type=seconds, metavar="SECONDS", help=f"until {what}")


def _add_traffic(group: argparse._ArgumentGroup, seconds: Callable[[str], float]) -> None:
    add = group.add_argument
    exponent = number(0, 5)
    add("--trace", type=Path, metavar="FILE", help="Mooncake's JSON lines or Azure's CSV")
    add("--speed", type=number(0.001, 1e6), default=1.0, help="of the trace's clock")
    add("--shrink", type=number(1, 512, int), default=1, help="divides all lengths but given ones")
    add("--longest", type=number(1, 10_000_000, int), default=1 << 20, help="prompt, in tokens")
    add("--tenants-zipf", type=exponent, default=1.0, help="exponent of tenants' popularity")
    add("--models-zipf", type=exponent, default=1.0, help="of the popularity of each one's models")


def _add_scenario(group: argparse._ArgumentGroup, seconds: Callable[[str], float]) -> None:
    add = group.add_argument
    rate, share, tokens = number(1e-6, 1e6), number(0.001, 0.999), number(0, 10_000_000, int)
    add("--rate", type=rate, default=1.0, help="requests a second, on average")
    add("--duration", type=seconds, default=60.0, help="seconds")
    add("--arrivals", choices=("poisson", "gamma", "bursts", "even"), default="poisson")
    add("--variation", type=number(0.1, 20), default=2.0, help="of gaps, with gamma; 1 is poisson")
    add("--burst-factor", type=number(1, 1000), default=5.0, help="times the rate, in bursts")
    add("--burst-share", type=share, default=0.1, help="of the time that is bursts")
    add("--burst-s", type=seconds, default=10.0, help="mean length of a burst, in seconds")
    add("--lengths", choices=sorted(lengths.PUBLIC), default="azure-conversation",
        help="public figures of prompts' and answers' lengths")  # fmt: skip
    add("--prompt-tokens", type=tokens, default=0, help="of each prompt, instead of --lengths")
    add("--output-tokens", type=tokens, default=0, help="of each answer, instead of --lengths")
    add("--prefix-tokens", type=tokens, default=0, help="of each model's system prompt")
    add("--turns", type=number(1, 1000), default=1.0, help="of a session, on average")
    add("--think-s", type=seconds, default=10.0, help="mean seconds between turns")
    add("--follow-up-tokens", type=number(1, 1e6), default=60.0, help="of later questions, mean")
    add("--thrash", action="store_true", help="ask for all models in turn, not by popularity")
    add("--flood", metavar="TENANT", help="sends further requests")
    add("--flood-rate", type=rate, default=50.0, help="of the flood, requests a second")
    add("--flood-from", type=number(0, 1e6), default=20.0, help="seconds from the start")
    add("--flood-for", type=seconds, default=20.0, help="seconds")
