"""A profile, or two of them, as one page of HTML that needs nothing else."""
