"""Settings of stacks that many tests share: anybody's, but for passwords, whose hashing is slow on
purpose and would be a good part of what people cost who come and sign in."""

from gateway.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
