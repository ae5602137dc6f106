"""What the benchmarks are made of: clients, servers, processes, figures and tables."""
