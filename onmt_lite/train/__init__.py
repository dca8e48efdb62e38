"""The trainer, `python -m onmt_lite.train`, and the calibration of trained models."""
