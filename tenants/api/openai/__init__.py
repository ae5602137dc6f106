"""The part of `/v1` that the console's process answers, and the OpenAPI document of all of it."""
