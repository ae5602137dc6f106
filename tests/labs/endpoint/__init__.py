"""vLLM's own tests of its API server, against plain `vllm serve` and against a complete Lorikeet.

Both serve the same weights and adapters with the same options. `make endpoint` fetches vLLM's
source package, runs the test modules listed in `suite.py` on each, and lists the tests that plain
vLLM passes and Lorikeet does not, except the deliberate differences in `differences.py`.
"""
