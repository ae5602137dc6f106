"""Named engine profiles: each `*.toml` here is one, `named.py` reads it, `hardware.py` says whether
it can run on this machine, and `proofs.py` keeps what `manage.py check_profile` measured of it."""
