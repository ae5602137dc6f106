"""Helpers with which Kubernetes and Ray start and stop engines by demand. They run beside gateways,
with the LORIKEET_METRICS_TOKEN and without Django."""
