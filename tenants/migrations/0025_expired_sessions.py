"""Gateways hear of sessions that end early. Those that expire end by themselves, for a page gets no
further ticket; telling of each that is deleted later would keep gateways busy for nothing."""

from django.db import migrations

EARLY = """
DROP TRIGGER notify_ended ON django_session;
CREATE TRIGGER notify_ended AFTER DELETE ON django_session FOR EACH ROW
    WHEN (OLD.expire_date > now()) EXECUTE FUNCTION tenants_notify_session();
"""
ALL = """
DROP TRIGGER notify_ended ON django_session;
CREATE TRIGGER notify_ended AFTER DELETE ON django_session FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_session();
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0024_uploads_are_received")]
    operations = [migrations.RunSQL(EARLY, ALL)]
