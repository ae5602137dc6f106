"""The Django project: settings, URLs, the commands, and the applications of both planes.

Most of it is wiring. Also here is what belongs to a process rather than to tenants or inference:
the bounds on connections (`edge/`); metrics, demand, Kubernetes' external metrics and the
forwarding of requests from gateways to consoles (`planes/`); the helpers that start and stop
engines (`scaling/`); and the parts of `manage.py up` (`local/`).
"""
