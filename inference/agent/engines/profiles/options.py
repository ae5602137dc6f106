"""The command-line options of named profiles: `--profile`, `--draft-model` and `--proofs`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference.agent.engines.profile import BadProfile, EngineProfile
from inference.agent.engines.profiles import proofs
from inference.agent.engines.profiles.hardware import Hardware
from inference.agent.engines.profiles.named import NamedProfile, named, shipped


def add_to(add: Callable[..., Any]) -> None:
    """Add the options to a parser or a group of one, by its `add_argument`."""
    add(
        "--profile",
        default=os.environ.get("LORIKEET_PROFILE") or None,
        metavar="NAME",
        help=(
            f"how the model is run: {', '.join(shipped())}, or a file ending in .toml; options "
            "besides it count more (LORIKEET_PROFILE)"
        ),
    )
    add(
        "--draft-model",
        default=os.environ.get("LORIKEET_DRAFT_MODEL") or None,
        metavar="MODEL",
        help=(
            "Hugging Face name or local folder of the small model that a profile with a draft "
            "guesses with (LORIKEET_DRAFT_MODEL)"
        ),
    )
    add(
        "--proofs",
        type=Path,
        default=Path(os.environ.get("LORIKEET_PROOFS_DIR") or "var/profiles"),
        metavar="FOLDER",
        help="what `manage.py check_profile` found on this machine (LORIKEET_PROOFS_DIR)",
    )


class ProfileParser(argparse.ArgumentParser):
    """A parser whose defaults are those of the profile that is named, as `options.named`."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse says.

        Raises:
            BadProfile: there is no such profile, or it is not valid.
        """
        found = _asked(args)
        own = dict(found.settings) if found else {}
        extra = own.pop("extra", {})
        if found and found.place.pool:
            own["served_name"] = found.place.pool
        self.set_defaults(**own, named=found)
        options, others = super().parse_known_args(args, namespace)
        options.extra = extra | options.extra
        return options, others


def _asked(arguments: Sequence[str] | None) -> NamedProfile | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_to(parser.add_argument)
    name = parser.parse_known_args(arguments)[0].profile
    return named(name) if name else None


def settings_of(options: argparse.Namespace, speculation: dict[str, Any] | None) -> dict[str, Any]:
    """What the named profile adds to the settings that `ProfileParser` found.

    Raises:
        BadProfile: an option is missing, or the engine has no profiles.
    """
    found: NamedProfile | None = options.named
    if found is None:
        return {}
    if options.engine == "upstream":
        raise BadProfile(f"profile is {found.name!r}: an upstream engine takes none")
    own = found.place.revision == "own"
    given: dict[str, Any] = {"named": found.name, "own_revision": own}
    if speculation and speculation.get("method") == "draft_model" and "model" not in speculation:
        if not options.draft_model:
            raise BadProfile(f"profile {found.name} needs a draft model: set --draft-model")
        given["speculative_config"] = speculation | {"model": options.draft_model}
    return given


def on_this_machine(options: argparse.Namespace, profile: EngineProfile) -> EngineProfile:
    """The profile with what is known of it here.

    Raises:
        BadProfile: the machine or the model lacks something that it needs.
    """
    found: NamedProfile | None = options.named
    if found is None:
        return profile
    hardware = Hardware.here()
    if options.engine == "vllm":
        found.require(hardware, Path(profile.model))
    if changed := sorted(_changed(found, profile)):
        proof = f"{proofs.NOT_PROVEN}: {', '.join(changed)} differs from the profile's"
    else:
        proof = proofs.sentence(found, hardware, options.proofs)
    return replace(profile, proof=proof)


def _changed(found: NamedProfile, profile: EngineProfile) -> set[str]:
    """The settings of the file that other options replaced, and others that change answers."""
    settings = dict(found.settings)
    extra = settings.pop("extra", {}).items()
    speculation = settings.pop("speculative_config", {}).items()
    more = profile.changing.keys() - found.vllm.keys() - {"profile"}
    return (
        more
        | {name for name, value in settings.items() if getattr(profile, name) != value}
        | {name for name, value in extra if profile.extra.get(name) != value}
        | {name for name, value in speculation if (profile.speculation or {}).get(name) != value}
    )
