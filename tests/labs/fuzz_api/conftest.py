"""Fixtures shared with the tests of tenants."""

from tests.tenants.conftest import adapter, live, tenant

__all__ = ["adapter", "live", "tenant"]
