"""Which process is given which secrets: those that it needs, and no others.

`up` starts each process with these alone, and a process that is started otherwise forgets the
others before it does anything. So whoever breaks into an engine can sign no session and read no
database, and a page's fault shows nothing of an engine's.
"""

from __future__ import annotations

from collections.abc import Mapping

STORAGE = frozenset(
    {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_S3_ACCESS_KEY_ID",
        "AWS_S3_SECRET_ACCESS_KEY",
        "AWS_S3_SESSION_TOKEN",
    }
)
"""Of ADAPTER_S3_BUCKET: what boto3 and django-storages read."""

TRACES = frozenset({"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"})
"""What traces are sent with: a collector's key, often."""

SECRETS_OF: Mapping[str, frozenset[str]] = {
    "gateway": STORAGE
    | TRACES
    | {
        "DATABASE_URL",
        "REDIS_URL",
        "KEY_PEPPER",
        "DISPATCH_KEY",
        "CONTENT_KEY",
        "CONTENT_KEY_PREVIOUS",
        "WORKER_TOKEN",
        "ENGINE_TOKEN",
        "INTERNAL_TOKEN",
        "METRICS_TOKEN",
    },
    "console": frozenset(
        {
            "DATABASE_URL",
            "REDIS_URL",
            "SECRET_KEY",
            "KEY_PEPPER",
            "INTERNAL_TOKEN",
            "RECEIPT_KEY",
            "CONTENT_KEY",
            "CONTENT_KEY_PREVIOUS",
            "OIDC_CLIENT_SECRET",
            "EMAIL_HOST_PASSWORD",
        }
    ),
    "worker": STORAGE | {"DATABASE_URL", "KEY_PEPPER", "WORKER_TOKEN", "EMAIL_HOST_PASSWORD"},
    "engine": TRACES | {"ENGINE_CREDENTIAL", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"},
    "engines": TRACES
    | {"ENGINE_CREDENTIAL", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "METRICS_TOKEN"},
    "scaledown": frozenset({"METRICS_TOKEN"}),
    "redis": frozenset(),
}
"""By the command of `manage.py`; `docs/operate.md` has this as a table."""
ALL = frozenset().union(*SECRETS_OF.values())


def secrets_of(process: str) -> frozenset[str]:
    """What the process may know. Another command, such as `migrate`, is the operator himself."""
    return SECRETS_OF.get(process, ALL)


def environment_of(process: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables without those secrets that are not the process's."""
    withheld = ALL - secrets_of(process)
    return {name: value for name, value in variables.items() if name not in withheld}
