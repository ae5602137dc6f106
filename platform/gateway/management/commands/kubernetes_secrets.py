"""`manage.py kubernetes_secrets`: Secrets for Kubernetes, as input of `kubectl apply`."""

from __future__ import annotations

import base64
import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.planes.monitoring.external_metrics import GROUP, VERSION
from gateway.process_secrets import secrets_of

PROCESSES = ("gateway", "console", "worker", "scaledown")
OF_MIGRATE = {"DATABASE_URL"}
SERVICE = "external-metrics"
VALID = timedelta(days=5 * 365)


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
        parser.add_argument(
            "--external-metrics",
            action="store_true",
            help="print instead the APIService for Kubernetes' autoscaler and a new certificate",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        make = external_metrics if options["external_metrics"] else secrets
        items = make(options["namespace"])
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
            "METRICS_TOKEN is not set: autoscalers authenticate to gateways with it."
        )
    return [_secret(process, namespace, values) for process, values in found.items()]


def _secret(
    name: str, namespace: str, values: dict[str, str], kind: str = "Opaque"
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": kind,
        "stringData": values,
    }


def external_metrics(namespace: str) -> list[dict[str, Any]]:
    """The APIService that routes the autoscaler's queries to gateways, and their self-signed
    certificate."""
    certificate, key = _certificate(f"{SERVICE}.{namespace}.svc")
    tls = {"tls.crt": certificate, "tls.key": key}
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": base64.b64encode(certificate.encode()).decode(),
            "service": {"name": SERVICE, "namespace": namespace},
        },
    }
    return [_secret(SERVICE, namespace, tls, "kubernetes.io/tls"), service]


def _certificate(host: str) -> tuple[str, str]:
    """A self-signed certificate for this host and its key, in PEM."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )
