"""The OpenAPI document, and a check of answers against it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import jsonschema_rs
from drf_spectacular.generators import SchemaGenerator

from tests.environment import RUN

PROBLEM = "application/problem+json"
PLACEHOLDER = re.compile(r"\{\w+\}")


@cache
def _text() -> str:
    file = RUN / "openapi.json"  # the first process of a run that needs it writes it
    if not file.exists():
        draft = file.with_suffix(f".{os.getpid()}")
        made = SchemaGenerator().get_schema(request=None, public=True)
        draft.write_text(json.dumps(made, default=str))
        draft.replace(file)
    return file.read_text()


def document() -> dict[str, Any]:
    """The document that the console serves, as the caller's own copy."""
    made: dict[str, Any] = json.loads(_text())
    return made


@dataclass(frozen=True)
class Answer:
    """A response; `body` is None for a stream."""

    method: str
    path: str
    status: int
    headers: Mapping[str, str]
    body: bytes | None

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]


@dataclass
class Document:
    """The document, read strictly: answers may have no field that is not described."""

    whole: dict[str, Any] = field(default_factory=document)
    _validators: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def _strict(self) -> dict[str, Any]:
        components: dict[str, Any] = deepcopy(self.whole["components"])
        for schema in components["schemas"].values():
            if "properties" in schema:
                schema.setdefault("additionalProperties", False)
        return components

    @cached_property
    def _paths(self) -> list[tuple[re.Pattern[str], str]]:
        """Patterns of path templates, the most constant first: `limits/default`, `limits/{id}`."""
        templates = sorted(self.whole["paths"], key=lambda path: (path.count("{"), path))
        return [(_pattern(template), template) for template in templates]

    def template(self, path: str) -> str | None:
        """The template that a path matches."""
        return next((template for found, template in self._paths if found.fullmatch(path)), None)

    def operation(self, method: str, path: str) -> dict[str, Any] | None:
        """The described operation. A HEAD that is not described is the GET without its body."""
        methods: dict[str, dict[str, Any]] = self.whole["paths"].get(self.template(path), {})
        found = methods.get(method.lower())
        return methods.get("get") if found is None and method == "HEAD" else found

    def faults(self, answer: Answer) -> list[str]:
        """The deviations of an answer from its description."""
        operation = self.operation(answer.method, answer.path)
        if operation is None:
            return self._unknown(answer)
        described = operation["responses"].get(str(answer.status))
        if described is None:
            return [f"{answer.status} is not described; there are {[*operation['responses']]}"]
        described = self.resolved(described)
        return [*self._headers(answer, described), *self._body(answer, described)]

    def _unknown(self, answer: Answer) -> list[str]:
        """The faults where no such path or method exists: 404, 405 or an earlier 4xx is right."""
        if not 400 <= answer.status < 500:
            return [f"{answer.status} of an operation that is not described"]
        if answer.status == 405 and "allow" not in answer.headers:
            return ["405 without Allow"]
        return []

    def _headers(self, answer: Answer, described: dict[str, Any]) -> list[str]:
        told = {name.lower() for name in described.get("headers", {})}
        own = {"location", "retry-after", "www-authenticate", *(
            name for name in answer.headers if name.startswith("upload-")
        )}  # fmt: skip
        return [
            f"the header {name} is not described"
            for name in own & answer.headers.keys()
            if name not in told
        ]

    def _body(self, answer: Answer, described: dict[str, Any]) -> list[str]:
        content = described.get("content", {})
        if answer.method == "HEAD" or answer.body is None:
            return []
        if not answer.body:
            return [f"no body, but {[*content]} is described"] if content else []
        if answer.media_type not in content:
            return [f"{answer.media_type!r} is not described; there are {[*content]}"]
        if not answer.media_type.endswith("json"):
            return []
        validator = self._validator(content[answer.media_type]["schema"])
        return [
            f"{'.'.join(map(str, error.instance_path))}: {error.message}"
            for error in validator.iter_errors(json.loads(answer.body))
        ]

    def _validator(self, schema: dict[str, Any]) -> Any:
        key = json.dumps(schema)
        if key not in self._validators:
            whole = {"components": self._strict, "allOf": [schema]}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        return self._validators[key]

    def resolved(self, described: dict[str, Any]) -> dict[str, Any]:
        """The object itself, or the one that its `$ref` refers to."""
        if (ref := described.get("$ref")) is None:
            return described
        found: Any = self.whole
        for part in ref.removeprefix("#/").split("/"):
            found = found[part]
        return dict(found)


def _pattern(template: str) -> re.Pattern[str]:
    parts = map(re.escape, PLACEHOLDER.split(template))
    last = ".+" if template.endswith("}") and "models/" in template else "[^/]+"  # may hold slashes
    return re.compile("[^/]+".join(parts) if last == "[^/]+" else last.join(parts))
