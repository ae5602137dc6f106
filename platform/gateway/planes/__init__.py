"""The applications of the two kinds of serving processes: inference plane and control plane."""
