from django.apps import AppConfig


class FrontendConfig(AppConfig):
    name = "frontend"

    def ready(self) -> None:
        from allauth.mfa.signals import authenticator_added

        from frontend.sign_in.devices import first_factor_added

        authenticator_added.connect(first_factor_added)
