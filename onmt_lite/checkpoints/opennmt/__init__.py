"""Checkpoints of OpenNMT-py."""
