"""`manage.py engines` and `manage.py trainer` on a real Ray cluster."""
