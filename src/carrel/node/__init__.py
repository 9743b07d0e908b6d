"""What happens on the machine with the GPUs: runners of jobs, leases and GPU state, environments, inputs, walls."""
