"""`manage.py kubernetes_secrets`: Secrets for Kubernetes, as input of `kubectl apply`."""

from __future__ import annotations

import json
import os
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.process_secrets import secrets_of

PROCESSES = ("gateway", "console", "worker", "trainer", "scaledown")
OF_MIGRATE = {"LORIKEET_DATABASE_URL"}


class Command(BaseCommand):
    help = (
        "Print a Secret for each process as input for `kubectl apply -f -`. Each has only "
        "the secrets from the environment and .env that its process needs. Create the "
        "credentials of engines with engine_credential."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--namespace", default="lorikeet", help="Kubernetes namespace (%(default)s)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        items = secrets(options["namespace"])
        self.stdout.write(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def secrets(namespace: str) -> list[dict[str, Any]]:
    """A Secret for each process, with only its own secrets."""
    wanted = {process: secrets_of(process) for process in PROCESSES} | {"migrate": OF_MIGRATE}
    found = {
        process: {name: os.environ[name] for name in sorted(names) if os.environ.get(name)}
        for process, names in wanted.items()
    }
    if not found["scaledown"]:
        raise CommandError(
            "LORIKEET_METRICS_TOKEN is not set: autoscalers authenticate to gateways with it."
        )
    return [_secret(process, namespace, values) for process, values in found.items()]


def _secret(name: str, namespace: str, values: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "Opaque",
        "stringData": values,
    }
