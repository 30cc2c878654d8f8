"""Methods side by side on the same data: mean and spread over seeds, cost, and whether differences mean anything."""

from fedfuse.comparison.run import compare, is_comparison, resume_comparison
from fedfuse.comparison.table import Comparison

__all__ = ["Comparison", "compare", "is_comparison", "resume_comparison"]
