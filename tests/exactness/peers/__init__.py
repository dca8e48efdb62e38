"""Comparisons with the original toolkits; each file is skipped where its toolkit is missing."""
