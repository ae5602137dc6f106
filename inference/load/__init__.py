"""`manage.py load`: sends traffic like the real one to any OpenAI endpoint, and measures it.

The plan comes first: each request has a time, a tenant, a model and lengths (`planned.py`), read
from a recorded trace (`traces.py`) or drawn at random (`scenarios.py`). Sending is open-loop
(`sending.py`): a request leaves at its time, however slow the endpoint is, and its latency counts
from that time. So a stall counts for all requests that were planned while it lasted.
"""
