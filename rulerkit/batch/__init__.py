"""Many models: jobs, this machine, Slurm, status, the page, checks before a GPU is used, costs.

Open `jobs` first: `batch_file` plans them, `execution` and `slurm` do them, `status` follows them.
"""
