"""Types of the bodies of `/v1`, from which its OpenAPI document is generated.

A field with a default may be missing; a field of an answer without a default is always present.
"""
