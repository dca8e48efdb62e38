"""The trainer, `python -m onmt_lite.train`, and calibration of what it made."""
