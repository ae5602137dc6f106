from functools import cached_property
from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.conf import settings

if TYPE_CHECKING:
    from tenants.fleet.gateways import LiveGateways


class TenantsConfig(AppConfig):
    name = "tenants"

    def ready(self) -> None:
        """Register the background jobs, and the signal that removes a deleted version's files."""
        from tenants import housekeeping, isolation  # noqa: F401
        from tenants.adapters import jobs  # noqa: F401
        from tenants.batches import jobs as of_batches  # noqa: F401
        from tenants.evals import runs  # noqa: F401
        from tenants.files import jobs as of_files  # noqa: F401
        from tenants.notifications import watching  # noqa: F401
        from tenants.offboarding import jobs as of_offboarding  # noqa: F401
        from tenants.routes import jobs as of_routes  # noqa: F401
        from tenants.splits import jobs as of_splits  # noqa: F401
        from tenants.tuning import comparison  # noqa: F401
        from tenants.tuning import jobs as of_tuning  # noqa: F401

    @cached_property
    def gateways(self) -> "LiveGateways":
        """This process's client of the gateways, created on first use."""
        from tenants.fleet.gateways import HttpGateways
        from tenants.models import GatewayProcess

        def alive() -> list[str]:
            return list(GatewayProcess.objects.alive().values_list("url", flat=True))

        return HttpGateways(settings.INTERNAL_TOKEN, alive)
