"""Comparisons with the original toolkits; files are skipped if their toolkit is not installed."""
