"""Control of runs: sweeps of many, stopping, resuming, and the lock of a run's folder."""
