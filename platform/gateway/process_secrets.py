"""Which process gets which secrets: only those that it needs.

`up` starts each process with only these, and a process that is started in another way drops the
others before it does anything else. So an attacker in an engine can't sign sessions or read the
database, and a faulty page can't leak an engine's secrets.
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
"""For LORIKEET_S3_BUCKET: the variables that boto3 and django-storages read."""

TRACES = frozenset({"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"})
"""Headers with which traces are sent, often a collector's key."""

SECRETS_OF: Mapping[str, frozenset[str]] = {
    "gateway": STORAGE
    | TRACES
    | {
        "LORIKEET_DATABASE_URL",
        "LORIKEET_REDIS_URL",
        "LORIKEET_KEY_PEPPER",
        "LORIKEET_DISPATCH_KEY",
        "LORIKEET_CONTENT_KEY",
        "LORIKEET_CONTENT_KEY_PREVIOUS",
        "LORIKEET_WORKER_TOKEN",
        "LORIKEET_INTERNAL_TOKEN",
        "LORIKEET_METRICS_TOKEN",
    },
    "console": STORAGE
    | {
        "LORIKEET_DATABASE_URL",
        "LORIKEET_REDIS_URL",
        "LORIKEET_SECRET_KEY",
        "LORIKEET_KEY_PEPPER",
        "LORIKEET_INTERNAL_TOKEN",
        "LORIKEET_RECEIPT_KEY",
        "LORIKEET_CONTENT_KEY",
        "LORIKEET_CONTENT_KEY_PREVIOUS",
        "LORIKEET_OIDC_CLIENT_SECRET",
        "LORIKEET_EMAIL_HOST_PASSWORD",
    },
    "worker": STORAGE
    | {
        "LORIKEET_DATABASE_URL",
        "LORIKEET_KEY_PEPPER",
        "LORIKEET_WORKER_TOKEN",
        "LORIKEET_RECEIPT_KEY",
        "LORIKEET_CONTENT_KEY",
        "LORIKEET_CONTENT_KEY_PREVIOUS",
        "LORIKEET_EMAIL_HOST_PASSWORD",
    },
    "trainer": STORAGE | {"LORIKEET_DATABASE_URL"},
    "engine": TRACES
    | {
        "LORIKEET_ENGINE_CREDENTIAL",
        "LORIKEET_UPSTREAM_KEY",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
    },
    "engines": TRACES
    | {
        "LORIKEET_ENGINE_CREDENTIAL",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "LORIKEET_METRICS_TOKEN",
    },
    "scaledown": frozenset({"LORIKEET_METRICS_TOKEN"}),
    "redis": frozenset(),
}
"""By command of `manage.py`; `docs/operate.md` has this as a table."""
OF_COMMANDS = frozenset({"LORIKEET_OPERATOR_PASSWORD"})
"""Only for other commands (`create_operator`)."""
ALL = OF_COMMANDS.union(*SECRETS_OF.values())


def secrets_of(process: str) -> frozenset[str]:
    """The secrets that the process may have. Other commands, such as `migrate`, act for the
    operator and get all."""
    return SECRETS_OF.get(process, ALL)


def environment_of(process: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables without secrets of other processes."""
    withheld = ALL - secrets_of(process)
    return {name: value for name, value in variables.items() if name not in withheld}
