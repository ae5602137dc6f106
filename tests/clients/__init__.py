"""Clients generated from the OpenAPI document, in two languages, read what tests were answered.

`python -m tests.clients [FOLDER]`: of answers (RECORD_ANSWERS); without it tests make some first.
"""
