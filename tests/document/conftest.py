"""Fixtures that tests of tenants have too."""

from tests.tenants.conftest import adapter, live, tenant

__all__ = ["adapter", "live", "tenant"]
