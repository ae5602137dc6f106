from django.urls import include, path

urlpatterns = [
    path("api/v1/", include("tenants.api.urls")),
    path("v1/", include("tenants.api.openai_urls")),
    path("", include("frontend.urls")),
]
handler400 = "gateway.failures.bad_request"
handler500 = "gateway.failures.server_error"
