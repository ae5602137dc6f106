"""An engine that makes its answers up: for unit tests and gateway benchmarks, nothing else."""
