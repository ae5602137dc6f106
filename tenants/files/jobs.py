"""Periodic clean-up of files."""

from __future__ import annotations

import procrastinate
from procrastinate.contrib.django import app as django_app

from tenants.files import keeping, uploads

app: procrastinate.App = django_app


@app.periodic(cron="*/10 * * * *")
@app.task(name="clean_files", queueing_lock="clean_files")
def clean_files(timestamp: int) -> None:
    """Every ten minutes: delete expired files, uploads that were not completed in time, and files
    without a row."""
    keeping.remove_expired()
    uploads.expire()
    keeping.remove_strays()
