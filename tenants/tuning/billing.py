"""A job's line in the ledger: the tokens that it trained on, at the training price of its base
model when it was created. It is written when the job succeeds, under the job's id, so once."""

from __future__ import annotations

from asgiref.sync import async_to_sync

from inference.link.accounts import Account, LedgerEntry, Usage
from tenants.billing.insertion import make_months
from tenants.billing.ledger import connect
from tenants.billing.lines import StatementLine
from tenants.billing.statements import write
from tenants.models import FineTuningJob, Price
from tenants.models.usage.prices import Tier

TRAINER = "trainer"
"""The engine and journal of these lines."""


def bill(job: FineTuningJob) -> None:
    """Write the line of a job that has a version, unless it is there.

    Raises:
        psycopg.Error: it can't be written now.
    """
    assert job.version is not None
    account = Account(
        tenant_id=job.tenant_id,
        key_id=job.key_id,
        started_at=job.created_at.timestamp(),
        base_model=job.base_model.name,
        adapter_id=job.version.adapter_id,
        version_id=job.version.pk,
        price=(price_of(job), 0, 0),
    )
    usage = Usage(prompt_tokens=job.trained_tokens)
    entry = LedgerEntry(job.pk, account, job.adapter_name, usage, "stop")
    async_to_sync(_write)(StatementLine(TRAINER, TRAINER, entry))


def price_of(job: FineTuningJob) -> int:
    """Micro-units of the currency per million trained tokens; 0 if there is no price."""
    found = Price.objects.filter(base_model=job.base_model, tier=Tier.TRAINING)
    found = found.filter(starts_at__lte=job.created_at).order_by("-starts_at")
    return found.values_list("prompt", flat=True).first() or 0


async def _write(line: StatementLine) -> None:
    async with await connect() as connection, connection.transaction():
        await make_months(connection, [line])
        await write(connection, [line])
