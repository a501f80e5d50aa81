"""What a training tells while it runs: logs, times of each step, FLOPs, norms of gradients."""
