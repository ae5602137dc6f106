"""Clients generated from the OpenAPI document, in two languages, read answers recorded by tests.

`python -m tests.labs.clients [FOLDER]`: the folder has the answers (RECORD_ANSWERS); without it,
tests are run first to record some.
"""
