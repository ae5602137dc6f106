"""Tests that every answer conforms to the OpenAPI document, whatever the request."""
