"""`/v1/evals` as in OpenAI's API, for keys: rows that a model answers and graders judge.

Evals and runs are created and shown here; workers run them (`tenants.evals.runs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from inference.errors import EvalInUse, InvalidRequest, NotFound
from tenants.api.endpoints.openai import files
from tenants.api.endpoints.openai.batches import check_metadata
from tenants.api.openai import listing
from tenants.api.openai.views import Query, body_of, keyed_by_method
from tenants.evals import criteria, runs, sources, starting
from tenants.evals.sources import AskedModel, EvalRow
from tenants.evals.stages import EvalResult
from tenants.evals.templates import TemplateFault
from tenants.models import ApiKey, Eval, EvalItem, EvalRun
from tenants.models.evals import MAX_NAME, EvalStatus

MAX_PAGE = 100
SHOWN_STATUS = {"passed": "pass", "failed": "fail", "errored": "error"}

_results = msgspec.json.Decoder(EvalResult)


class _WantedEval(msgspec.Struct, forbid_unknown_fields=True):
    data_source_config: sources.Config
    testing_criteria: list[criteria.Given]
    name: str = ""
    metadata: dict[str, str] | None = None


class _Renamed(msgspec.Struct, forbid_unknown_fields=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET


class _WantedRun(msgspec.Struct, forbid_unknown_fields=True):
    data_source: sources.RunSource
    name: str = ""
    metadata: dict[str, str] | None = None


# --- What clients see ----------------------------------------------------------------------------


def shown(eval: Eval) -> dict[str, Any]:
    """The eval as clients see it."""
    config = eval.config
    item = {"type": "object", "properties": {"item": config["item_schema"]}, "required": ["item"]}
    return {
        "id": eval.pk,
        "object": "eval",
        "created_at": int(eval.created_at.timestamp()),
        "name": eval.name,
        "metadata": eval.metadata,
        "data_source_config": {"type": "custom", "schema": item, **config},
        "testing_criteria": eval.criteria,
    }


def shown_run(run: EvalRun) -> dict[str, Any]:
    """The run as clients see it."""
    names = [one["name"] for one in run.eval.criteria]
    sums = run.by_criterion or [{"passed": 0, "failed": 0} for _ in names]
    tenant = run.eval.tenant.slug
    return {
        "id": run.pk,
        "object": "eval.run",
        "created_at": int(run.created_at.timestamp()),
        "eval_id": run.eval_id,
        "name": run.name,
        "metadata": run.metadata,
        "model": run.model,
        "status": run.status,
        "error": run.error or {"code": "", "message": ""},
        "data_source": run.source,
        "report_url": f"{settings.CONSOLE_URL}/t/{tenant}/evals/{run.eval_id}/runs/{run.pk}",
        "result_counts": {
            "total": run.total,
            "passed": run.passed,
            "failed": run.failed,
            "errored": run.errored,
        },
        "per_testing_criteria_results": [
            {"testing_criteria": name, **one} for name, one in zip(names, sums, strict=True)
        ],
        "per_model_usage": [{"model_name": name, **one} for name, one in run.usage.items()],
    }


def shown_item(item: EvalItem) -> dict[str, Any]:
    """The result for a row as clients see it."""
    result, run = _results.decode(item.body), item.run
    return {
        "id": item.pk,
        "object": "eval.run.output_item",
        "created_at": int(item.created_at.timestamp()),
        "run_id": run.pk,
        "eval_id": run.eval_id,
        "status": SHOWN_STATUS[item.status],
        "datasource_item_id": item.number,
        "datasource_item": result.item,
        "results": [
            msgspec.to_builtins(grade) | {"passed": grade.passed, "score": grade.score or 0.0}
            for grade in result.grades
        ],
        "sample": _sample(run, result),
    }


def _sample(run: EvalRun, result: EvalResult) -> dict[str, Any]:
    source = msgspec.convert(run.source, sources.RunSource)
    sampling: Mapping[str, Any] = run.source.get("sampling_params") or {}
    sample = result.sample or {}
    text = sample.get("output_text")
    usage = (sample.get("usage") or {}) if run.model else {}  # a row can have anything
    try:
        asked = source.messages(EvalRow(result.item)) if isinstance(source, AskedModel) else []
    except TemplateFault:
        asked = []
    return {
        "input": [
            {"role": str(one.get("role")), "content": _text(one.get("content"))} for one in asked
        ],
        "output": [{"role": "assistant", "content": text}] if isinstance(text, str) else [],
        "finish_reason": str(sample.get("finish_reason", "")),
        "model": str(sample.get("model") or run.model),
        "usage": {
            "prompt_tokens": usage.get("prompt_tokens", 0),
            "completion_tokens": usage.get("completion_tokens", 0),
            "total_tokens": usage.get("total_tokens", 0),
            "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        },
        "error": sample.get("error") if run.model else None,
        "temperature": sampling.get("temperature"),
        "max_completion_tokens": sampling.get("max_completion_tokens"),
        "top_p": sampling.get("top_p"),
        "seed": sampling.get("seed"),
    }


def _text(content: Any) -> str:
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


# --- Evals ---------------------------------------------------------------------------------------


def found(key: ApiKey, id: str) -> Eval:
    """The eval of the key's tenant with this id.

    Raises:
        NotFound: there is none.
    """
    eval = None if "\0" in id else key.tenant.evals.select_related("tenant").filter(pk=id).first()
    if eval is None:
        raise NotFound(f"No eval found with id '{id[:64]}'.")
    return eval


def _list(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    query = Query(request.GET, (*listing.PARAMETERS, "order_by"))
    query.choices("order_by", ("created_at",))
    return listing.page(
        key.tenant.evals.select_related("tenant"), query, shown, most=MAX_PAGE, order="asc"
    )


def _create(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    wanted = body_of(request, _WantedEval)
    config = sources.check_config(wanted.data_source_config)
    graders = criteria.check(wanted.testing_criteria)
    eval = Eval(
        tenant=key.tenant,
        name=_name(wanted.name),
        metadata=_metadata(wanted.metadata),
        config=msgspec.structs.asdict(config),
        criteria=msgspec.to_builtins(graders),
    )
    starting.create(eval)
    return shown(eval)


def _name(name: str) -> str:
    if len(name) > MAX_NAME or "\0" in name:
        raise InvalidRequest(
            f"`name` can have at most {MAX_NAME} characters, without null characters.",
            param="name",
        )
    return name


def _metadata(metadata: dict[str, str] | None) -> dict[str, str] | None:
    check_metadata(metadata or {})
    return metadata


def _retrieve(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    return shown(found(key, id))


def _update(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    """Change the name and the metadata; the rest never changes."""
    eval, wanted = found(key, id), body_of(request, _Renamed)
    if wanted.name is not msgspec.UNSET:
        eval.name = _name(wanted.name)
    if wanted.metadata is not msgspec.UNSET:
        eval.metadata = _metadata(wanted.metadata)
    eval.updated_at = timezone.now()
    eval.save(update_fields=["name", "metadata", "updated_at"])
    return shown(eval)


def _delete(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    """Delete it with its runs; those under way are cancelled first.

    Raises:
        EvalInUse: an alias requires it.
    """
    eval = found(key, id)
    if (gate := eval.gates.select_related("adapter").first()) is not None:
        raise EvalInUse(
            f"The alias {gate.alias} of the adapter {gate.adapter.name} requires this eval."
        )
    for run in eval.runs.unfinished().select_related("samples", "verdicts"):
        runs.cancel(run)
    eval.delete()
    return {"object": "eval.deleted", "deleted": True, "eval_id": id}


# --- Runs ----------------------------------------------------------------------------------------


def found_run(key: ApiKey, id: str, run_id: str) -> EvalRun:
    """The run with this id, of this eval of the key's tenant.

    Raises:
        NotFound: there is none.
    """
    mine = EvalRun.objects.filter(eval__tenant=key.tenant_id, eval=id)
    mine = mine.select_related("eval__tenant", "samples", "verdicts")
    run = None if "\0" in id + run_id else mine.filter(pk=run_id).first()
    if run is None:
        raise NotFound(f"No run found with id '{run_id[:64]}'.")
    return run


def _list_runs(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    query = Query(request.GET, (*listing.PARAMETERS, "status"))
    mine = found(key, id).runs.select_related("eval__tenant")
    if statuses := query.choices("status", EvalStatus.values):
        mine = mine.filter(status__in=statuses)
    return listing.page(mine, query, shown_run, most=MAX_PAGE, order="asc")


def _create_run(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    eval, wanted = found(key, id), body_of(request, _WantedRun)
    run = EvalRun(eval=eval, key=key, name=_name(wanted.name), metadata=_metadata(wanted.metadata))
    starting.start(run, wanted.data_source)
    return shown_run(run)


def _retrieve_run(request: HttpRequest, key: ApiKey, id: str, run_id: str) -> dict[str, Any]:
    return shown_run(found_run(key, id, run_id))


def _cancel_run(request: HttpRequest, key: ApiKey, id: str, run_id: str) -> dict[str, Any]:
    run = found_run(key, id, run_id)
    runs.cancel(run)
    return shown_run(run)


def _delete_run(request: HttpRequest, key: ApiKey, id: str, run_id: str) -> dict[str, Any]:
    run = found_run(key, id, run_id)
    runs.cancel(run)
    run.delete()
    return {"object": "eval.run.deleted", "deleted": True, "run_id": run_id}


# --- Results -------------------------------------------------------------------------------------


def _list_items(request: HttpRequest, key: ApiKey, id: str, run_id: str) -> dict[str, Any]:
    query = Query(request.GET, (*listing.PARAMETERS, "status"))
    items = found_run(key, id, run_id).items.select_related("run")
    if statuses := query.choices("status", tuple(SHOWN_STATUS.values())):
        items = items.filter(status__in=[a for a, b in SHOWN_STATUS.items() if b in statuses])
    return listing.page(items, query, shown_item, most=MAX_PAGE, order="asc")


def _retrieve_item(
    request: HttpRequest, key: ApiKey, id: str, run_id: str, item_id: str
) -> dict[str, Any]:
    items = found_run(key, id, run_id).items.select_related("run")
    item = None if "\0" in item_id else items.filter(pk=item_id).first()
    if item is None:
        raise NotFound(f"No output item found with id '{item_id[:64]}'.")
    return shown_item(item)


evals = keyed_by_method(files.USERS, GET=_list, POST=_create)
eval = keyed_by_method(files.USERS, GET=_retrieve, POST=_update, DELETE=_delete)
eval_runs = keyed_by_method(files.USERS, GET=_list_runs, POST=_create_run)
eval_run = keyed_by_method(files.USERS, GET=_retrieve_run, POST=_cancel_run, DELETE=_delete_run)
cancel = keyed_by_method(files.USERS, POST=_cancel_run)
"""The path of newer SDKs; older ones POST to the run itself."""
items = keyed_by_method(files.USERS, GET=_list_items)
item = keyed_by_method(files.USERS, GET=_retrieve_item)
