"""Our manifests on a real Kubernetes control plane, whose pods are processes of this machine."""
