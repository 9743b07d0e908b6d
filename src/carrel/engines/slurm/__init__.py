"""The engine for a Slurm cluster: jobs are submitted with sbatch, and start the same runner there as on the lab's own machine."""
