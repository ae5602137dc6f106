"""`python -m gateway`: what `manage.py` is in a checkout."""

from gateway.start import command

command()
