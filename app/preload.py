"""The slow imports, done once and by one thread: two that import transformers at a time trip over its lazy parts."""

import gc
import threading

_lock = threading.Lock()
_done = False


def heavy_imports() -> None:
    """Import what every page needs; whoever comes second waits for the first."""
    global _done
    with _lock:
        if _done:
            return
        import torch

        import dcinterp.analysis.case_study
        import dcinterp.bridge.wrapping
        import dcinterp.figures

        dcinterp.figures.kinds()
        from workbench.jobs import stop_if_cancelled

        torch.nn.modules.module.register_module_forward_pre_hook(stop_if_cancelled)
        # Tiny models run fastest on one thread, and sessions do not fight over the cores.
        torch.set_num_threads(1)
        # Streamlit collects all garbage after every run; what is imported by now never becomes any.
        gc.collect()
        gc.freeze()
        _done = True
