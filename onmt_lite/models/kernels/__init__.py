"""C kernels (`kernels.c`), the build of their library (`build.py`) and their ctypes bindings."""
