from django.urls import include, path, re_path

from tenants.api import problems
from tenants.api.openai import views as v1

urlpatterns = [
    path("api/v1/", include("tenants.api.urls")),
    path("v1/", include("tenants.api.openai.urls")),
    re_path(r"^api(?:/|$)", problems.not_found),
    re_path(r"^v1$", v1.not_found),
    path("", include("frontend.urls")),
]
handler400 = "gateway.failures.bad_request"
handler500 = "gateway.failures.server_error"
