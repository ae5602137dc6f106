"""`manage.py engines` on a real Ray cluster."""
