"""Whether every answer is as the OpenAPI document says, whatever is asked."""
