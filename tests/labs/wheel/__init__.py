"""Another release of vLLM, which need not run on this machine: does it have what we rely on?"""
