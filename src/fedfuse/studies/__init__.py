"""Many runs: comparisons, tuning."""
