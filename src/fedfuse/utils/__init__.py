"""Plumbing without a domain."""
