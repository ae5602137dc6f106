"""`manage.py create_operator`: the first account of an installation, or access that was lost."""

from __future__ import annotations

import secrets
from typing import Any

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from inference.process import environ
from tenants.models import User

PASSWORD = "LORIKEET_OPERATOR_PASSWORD"


class Command(BaseCommand):
    help = (
        f"Create an operator with the password in {PASSWORD}, or else with a random one, which is "
        "printed. Operators invite everybody else in the console."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?", default="operator", help="name to sign in with")
        parser.add_argument("--email", default="", help="address for notifications")
        parser.add_argument(
            "--if-none",
            action="store_true",
            help="do nothing if there is an operator already; for scripts that run at each start",
        )
        parser.add_argument(
            "--reset",
            action="store_true",
            help="of an existing account: make it an operator with this password and without a "
            "second factor",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["if_none"] and User.operators().exists():
            self.stdout.write("There is an operator already.")
            return
        name, given = options["name"], environ.text(PASSWORD, "")
        user = User.objects.filter(username=name).first() or User(username=name)
        if user.pk and not options["reset"]:
            raise CommandError(
                f"{name} exists already. With --reset it gets a new password and loses its second "
                "factor."
            )
        password = given or secrets.token_urlsafe(15)
        user.email = options["email"] or user.email
        user.is_staff = user.is_superuser = user.is_active = True
        user.set_password(password)
        try:
            user.full_clean()
            validate_password(password, user)
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from None
        with transaction.atomic():
            user.save()
            Authenticator.objects.filter(user=user).delete()
        self.stdout.write(f"Operator: {name}")
        self.stdout.write(f"Password: {f'as in {PASSWORD}' if given else password}")
        self.stdout.write(f"Console:  {settings.CONSOLE_URL}")
