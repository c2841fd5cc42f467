"""Measures the product side by side with the plainest thing that does the same kind of work, in one run.

A benchmark states what it measured and never fails for a number: machines differ, ratios on one machine say enough.
"""
