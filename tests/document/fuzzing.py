"""schemathesis over the document: inputs of each operation, valid ones and wrong ones.

Twice the same: what it derives from the document (boundary values, missing and wrong fields, other
methods) is a list, and the random part is derandomized. FUZZ_EXAMPLES asks for more of that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import hypothesis
import requests
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.hypothesis.builder import (
    HypothesisTestConfig,
    HypothesisTestMode,
    create_test,
)
from schemathesis.specs.openapi import checks as openapi

from tests.document.document import document

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10"))
SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
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
Known = Mapping[str, list[Any]]


def schema_of(prefix: str, known: Known) -> Any:
    """The part of the document under `prefix`; parameters of these names are among those `known`,
    so that most questions are about something that is there."""
    whole = document()
    whole["paths"] = {
        path: _narrowed(path, item, known)
        for path, item in whole["paths"].items()
        if path.startswith(prefix)
    }
    return schemathesis.openapi.from_dict(whole, config=SchemathesisConfig())


def _narrowed(path: str, item: dict[str, Any], known: Known) -> dict[str, Any]:
    for method, operation in item.items():
        operation.pop("security", None)  # the session shows who asks
        for parameter in operation.get("parameters", []):
            name, where = parameter["name"], parameter["in"]
            if method == "put" and path.endswith("{" + name + "}"):
                continue  # it makes what its address names, so any name is right
            part = path.split("{" + name)[0].strip("/").split("/")[-1]
            values = known.get(f"{part}/{name}") if where == "path" else known.get(name)
            if values is not None:
                parameter["schema"] = {"enum": values}
    return item


def operations(prefix: str) -> list[tuple[str, str]]:
    """Method and address of each operation."""
    return [
        (method.upper(), path)
        for path, item in document()["paths"].items()
        if path.startswith(prefix)
        for method in item
    ]


def fuzz(operation: Any, session: requests.Session, url: str, checks: list[Any] = CHECKS) -> int:
    """Ask all that schemathesis finds to ask of the operation; how many questions that were.

    Raises:
        FailureGroup: an answer is not as described, or a wrong question was taken.
    """
    asked = 0

    def ask(case: schemathesis.Case[Any]) -> None:
        nonlocal asked
        asked += 1
        case.call_and_validate(base_url=url, session=session, checks=checks)

    config = HypothesisTestConfig(
        project=operation.schema.config, modes=[*HypothesisTestMode], settings=SETTINGS
    )
    run: Callable[[], None] = create_test(operation=operation, test_func=ask, config=config)
    run()
    return asked
