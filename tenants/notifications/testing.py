"""Waits for a worker to send a webhook's test event, so that whoever asked sees the answer.

Only workers send: consoles may have no access to the Internet.
"""

from __future__ import annotations

import time

from django.conf import settings
from django.db import connection

from tenants.models.notifications import Delivery, DeliveryState

PAUSE_S = 0.3


def outcome(delivery: Delivery) -> Delivery:
    """The delivery once it was tried, or as it is after WEBHOOK_TEST_WAIT_S."""
    deadline = time.monotonic() + settings.WEBHOOK_TEST_WAIT_S
    while delivery.state == DeliveryState.WAITING and time.monotonic() < deadline:
        if not connection.in_atomic_block:  # a test's, which is rolled back at its end
            connection.close()  # others need it meanwhile
        time.sleep(PAUSE_S)
        delivery.refresh_from_db()
    return delivery
