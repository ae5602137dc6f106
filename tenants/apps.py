from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"

    def ready(self) -> None:
        """Register the background jobs, and the signal that removes a deleted version's files."""
        from tenants import housekeeping, isolation  # noqa: F401
        from tenants.adapters import jobs  # noqa: F401
