"""The requests and probes that gateways send: each from its first frame to its final one."""
