from django.urls import include, path, re_path
from django.views.generic import RedirectView

from tenants.api import problems
from tenants.api.openai import views as v1
from tenants.hub import replies as hub

# The address of an adapter that clients of the hub print after a push.
ADAPTER = r"^hub/(?!api/|objects/)(?P<tenant>[a-z0-9-]+)/(?P<name>[^/]+)(?:/commit/[^/]+)?$"
ADAPTER_PAGE = RedirectView.as_view(url="/t/%(tenant)s/adapters/%(name)s/")

urlpatterns = [
    path("api/v1/", include("tenants.api.urls")),
    path("v1/", include("tenants.api.openai.urls")),
    path("hub/", include("tenants.hub.urls")),
    re_path(ADAPTER, ADAPTER_PAGE),
    re_path(r"^hub(?:/|$)", hub.not_found),
    re_path(r"^api(?:/|$)", problems.not_found),
    re_path(r"^v1$", v1.not_found),
    path("", include("frontend.urls")),
]
handler400 = "gateway.failures.bad_request"
handler500 = "gateway.failures.server_error"
