"""The parts of the benchmarks: clients, servers, processes, figures and tables."""
