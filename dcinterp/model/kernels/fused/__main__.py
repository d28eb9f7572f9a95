"""`python -m dcinterp.model.kernels.fused` builds the kernel ahead of its first use; without a compiler it says so.

It waits longer for the compiler than a first use does: on a slow machine, run it once.
"""

import logging

from dcinterp.model.kernels.fused import build

logging.basicConfig(level=logging.INFO, format="%(message)s")
build.PATIENCE = 1800.0
build.library()
