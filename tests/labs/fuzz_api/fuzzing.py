"""schemathesis over the OpenAPI document: valid and invalid inputs for each operation.

Of the cases that it derives from the document (boundary values, missing and wrong fields, other
methods), FUZZ_QUESTIONS are sent, and FUZZ_EXAMPLES random ones besides. FUZZ_SEED selects them and
the order of the operations; the same seed repeats the same requests. After FUZZ_SECONDS no further
operation is begun; another seed begins with others.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from zlib import crc32

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.config._checks import NEGATIVE_DATA_REJECTION_EXPECTED_STATUSES
from schemathesis.core.failures import FailureGroup
from schemathesis.generation.drivers import CoverageGenerator
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.generation.hypothesis.builder import (
    HypothesisTestConfig,
    HypothesisTestMode,
    create_test,
)
from schemathesis.generation.overrides import Override
from schemathesis.specs.openapi import checks as openapi

from tests.document.document import document

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "3"))
QUESTIONS = int(os.environ.get("FUZZ_QUESTIONS", "60"))
"""At most this many derived cases per operation; 0 sends all, which are 115 on average."""
SEED = os.environ.get("FUZZ_SEED", "0")
END = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "inf"))
SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
    print_blob=False,
)
CHECKS = [
    schemathesis.checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
    openapi.negative_data_rejection,
    openapi.unsupported_method,
    openapi.missing_required_header,
    openapi.allow_header_conformance,
]
STATUSES = [*NEGATIVE_DATA_REJECTION_EXPECTED_STATUSES, "412"]
"""Statuses for invalid requests. 412 is for uploads without the protocol's version, as tus
requires."""
CONFIG = {
    "checks": {
        "negative_data_rejection": {"expected-statuses": STATUSES},
        "missing_required_header": {"expected-statuses": STATUSES},
    }
}
Known = Mapping[str, list[Any]]


schemathesis.serializer.alias("application/offset+octet-stream", "application/octet-stream")


def schema_of(prefix: str, known: Known) -> Any:
    """The document's part under `prefix`. Parameters named in `known` are restricted to its values,
    so that most requests concern existing objects."""
    whole = document()
    whole["paths"] = {
        path: _narrowed(path, item, known)
        for path, item in whole["paths"].items()
        if path.startswith(prefix)
    }
    return schemathesis.openapi.from_dict(whole, config=SchemathesisConfig.from_dict(CONFIG))


def _narrowed(path: str, item: dict[str, Any], known: Known) -> dict[str, Any]:
    for method, operation in item.items():
        operation.pop("security", None)  # the session has the credentials
        for parameter in operation.get("parameters", []):
            name, where = parameter["name"], parameter["in"]
            if method == "put" and path.endswith("{" + name + "}"):
                continue  # creates the object of its path, so any name is valid
            part = path.split("{" + name)[0].strip("/").split("/")[-1]
            values = known.get(f"{part}/{name}") if where == "path" else known.get(name)
            if values is not None and method != "options":
                parameter["schema"] = {"enum": values}
    return item


@pytest.fixture(autouse=True)
def in_time() -> None:
    """Skip the test after FUZZ_SECONDS; requested before other fixtures create anything."""
    if time.monotonic() > END:
        pytest.skip("FUZZ_SECONDS are over")


def operations(prefix: str) -> list[tuple[str, str]]:
    """Method and path of each operation, in the seed's order."""
    found = [
        (method.upper(), path)
        for path, item in document()["paths"].items()
        if path.startswith(prefix)
        for method in item
    ]
    return random.Random(SEED).sample(found, len(found))


def fuzz(operation: Any, session: requests.Session, url: str, checks: list[Any] = CHECKS) -> int:
    """Send schemathesis's cases for the operation; returns their number.

    Raises:
        AssertionError: answers do not conform, or bad data was accepted; lists each kind once.
    """
    asked, findings = 0, dict[str, str]()

    def ask(case: schemathesis.Case[Any]) -> None:
        nonlocal asked
        asked += 1
        try:
            case.call_and_validate(base_url=url, session=session, checks=checks)
        except FailureGroup as group:
            for failure in group.exceptions:
                findings.setdefault(f"{failure.title}: {failure.message:.60}", str(group))

    for case in _derived(operation):
        ask(case)
    config = HypothesisTestConfig(
        project=operation.schema.config,
        modes=[HypothesisTestMode.EXAMPLES, HypothesisTestMode.FUZZING],
        settings=SETTINGS,
        seed=crc32(SEED.encode()),
    )
    run: Callable[[], None] = create_test(operation=operation, test_func=ask, config=config)
    run()
    assert not findings, "\n\n".join(f"{kind}\n{what}" for kind, what in findings.items())
    return asked


def _derived(operation: Any) -> Iterator[schemathesis.Case[Any]]:
    """Cases derived from the document. They are not passed to hypothesis as explicit examples,
    because it records each one and stops at the first that fails."""
    generation = operation.schema.config.generation_for(operation=operation, phase="coverage")
    cases = list(
        CoverageGenerator(
            operation=operation,
            generation_modes=generation.modes,
            generation_config=generation,
            auth_storage=None,
            override=Override(),
            feedback=NO_FEEDBACK,
        )
    )
    if QUESTIONS and len(cases) > QUESTIONS:
        cases = random.Random(f"{SEED}-{operation.label}").sample(cases, QUESTIONS)
    yield from cases
