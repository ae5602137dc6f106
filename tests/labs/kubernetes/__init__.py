"""The manifests on a real Kubernetes control plane, with this machine's processes as pods."""
