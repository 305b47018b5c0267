"""What one rank of a server runs. Started by :func:`helpers.ranks.run_ranks`, one process for each rank."""
