"""Kernels in C (`kernels.c`): how their library is had (`build.py`) and called (`calls.py`)."""
