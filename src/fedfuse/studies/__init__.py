"""Many runs: comparisons, sweeps, tuning, solution paths."""
