"""`python -m dcinterp.model.kernels.fused` builds the kernel ahead of its first use; without a compiler it says so."""

import logging

from dcinterp.model.kernels.fused.build import library

logging.basicConfig(level=logging.INFO, format="%(message)s")
library()
