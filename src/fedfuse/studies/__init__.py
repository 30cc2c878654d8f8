"""Many runs: comparisons, tuning, solution paths."""
