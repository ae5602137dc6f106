"""`make fuzz-api`: requests that schemathesis derives from the OpenAPI document."""
