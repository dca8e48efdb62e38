"""OpenNMT-py models."""
