"""What only a GPU can show: run with ``pytest -m gpu`` or ``python -m bench.gpu_check``."""
