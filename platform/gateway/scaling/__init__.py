"""What helps Kubernetes and Ray to start and stop engines by demand. Runs beside gateways, with the
METRICS_TOKEN and without Django."""
