"""What each kind of serving process is made of: the inference plane and the control plane."""
