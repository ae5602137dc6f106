"""The page that sizes an installation."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from inference.gateway.measuring.measures import COMPLETED, REFUSED
from inference.gateway.measuring.sums import BUCKETS
from tenants.busiest_hour import BusiestHour, busiest_hour
from tenants.models import Tenant, TotalHour
from tests.inference.test_sizing import LLAMA, QWEN, SPEED
from tests.tenants.making import make_tenant

pytestmark = pytest.mark.django_db

FILLED: dict[str, Any] = {
    "model": "Llama 3.1 8B", "config": "", "weights": "bfloat16", "cache": "bfloat16",
    "device": "h100", "price": "3", "requests": "20", "prompt": "1000", "output": "200",
    "cached": "50", "adapters": "1000", "slots": "64", "rank": "16", "load": "70",
    "cloud_prompt": "0.2", "cloud_output": "0.6",
}  # fmt: skip


def hour(ago: int, requests: int, tenant: Tenant | None = None, outcome: str = COMPLETED) -> None:
    """An hour, so many days ago, of requests with 100 tokens, half of them cached, and 10."""
    TotalHour.objects.create(
        tenant=tenant, at=timezone.now() - timedelta(days=ago), outcome=outcome, code="stop",
        limit_kind="", limit_scope="", requests=requests, prompt_tokens=100 * requests,
        cached_tokens=50 * requests, output_tokens=10 * requests, cost=0, decode_tokens=0,
        decode_s=0, first_tokens=[0] * BUCKETS, totals=[0] * BUCKETS,
    )  # fmt: skip


def page(operator: Client, **change: str) -> tuple[int, str]:
    answer = operator.post(reverse("operate_sizing"), FILLED | change)
    return answer.status_code, answer.text


def test_a_plan_of_what_is_filled_in(operator: Client) -> None:
    status, text = page(operator)
    assert status == 200
    for part in ("8,030,261,248", "Engines", "whose adapter has a slot", "Cheaper than the"):
        assert part in text
    assert "7,615,616,512" in page(operator, config=json.dumps(QWEN))[1]
    assert "7,615,616,512" in page(operator, config=json.dumps({"text_config": QWEN}))[1]
    measured = page(operator, speed=SPEED)[1]
    assert "Measured: a step of 4 sequences" in measured and "bandwidth reached" not in measured
    assert "Cheaper than" not in page(operator, cloud_prompt="", cloud_output="")[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "l4", "slots": "1000"}, "The model does not fit"),
        ({"config": "{"}, "This is not JSON."),
        ({"config": "[" * 19_000}, "This is not JSON."),
        ({"config": "[1]"}, "This is not the config.json"),
        ({"config": "{}"}, "has no num_attention_heads"),
        ({"config": json.dumps(LLAMA | {"num_experts": 8})}, "Models with experts"),
        ({"speed": "{}"}, "The measured speed is not from manage.py"),
        ({"config": "x" * 20_001}, "at most 20000 characters"),
        ({"prompt": "0"}, "greater than or equal to 1"),
        ({"requests": "nan"}, "Enter a number"),
        ({"load": "100"}, "less than or equal to 99"),
        ({"device": "abacus"}, "not one of the available choices"),
    ],
)
def test_what_cannot_be_is_told(operator: Client, change: dict[str, str], said: str) -> None:
    status, text = page(operator, **change)
    assert status == 422 and said in text


def test_traffic_is_that_of_the_busiest_hour(operator: Client) -> None:
    assert "busiest hour" not in operator.get(reverse("operate_sizing")).text
    hour(1, 7200)
    hour(2, 3600)
    hour(8, 99_999)
    hour(1, 99_999, outcome=REFUSED)
    hour(1, 99_999, make_tenant("of-one"))
    assert busiest_hour() == BusiestHour(2.0, 100.0, 10.0, 0.5)
    text = operator.get(reverse("operate_sizing")).text
    assert "busiest hour" in text and 'name="requests" value="2.0"' in text


def test_the_command_takes_it_from_there(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    hour(1, 7200)
    call_command("plan", str(tmp_path), "--history", "--output=300", "--json")
    traffic = json.loads(capsys.readouterr().out)["assumed"]["traffic"]
    assert (traffic["requests_s"], traffic["prompt"], traffic["output"]) == (2.0, 100.0, 300.0)
    assert traffic["cached"] == 0.5
