"""Marian's own models."""
