from django.urls import include, path, re_path
from django.views.generic import RedirectView

from tenants.api import problems
from tenants.api.openai import views as v1

# Where clients of the hub say that an adapter is once they have pushed it.
ADAPTER_PAGE = RedirectView.as_view(url="/t/%(tenant)s/adapters/%(name)s/")

urlpatterns = [
    path("api/v1/", include("tenants.api.urls")),
    path("v1/", include("tenants.api.openai.urls")),
    path("hub/<slug:tenant>/<str:name>", ADAPTER_PAGE),
    path("hub/<slug:tenant>/<str:name>/commit/<str:commit>", ADAPTER_PAGE),
    path("hub/", include("tenants.hub.urls")),
    re_path(r"^api(?:/|$)", problems.not_found),
    re_path(r"^v1$", v1.not_found),
    path("", include("frontend.urls")),
]
handler400 = "gateway.failures.bad_request"
handler500 = "gateway.failures.server_error"
