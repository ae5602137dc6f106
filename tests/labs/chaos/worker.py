"""`python -m tests.labs.chaos.worker`: a worker that sends engines no requests of its own, because
what the isolation check generates is in no ledger."""

from __future__ import annotations

import django

if __name__ == "__main__":
    django.setup()
    from django.core.management import call_command
    from procrastinate.contrib.django import app

    app.periodic_registry.periodic_tasks.pop(("check_isolation", ""))
    call_command("worker")
