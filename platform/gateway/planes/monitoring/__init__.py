"""Figures of a gateway for Prometheus and for autoscalers."""
