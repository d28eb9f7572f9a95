"""The case study of one answer: what it measures (`evidence`), says step by step (`steps`) and in short (`summary`)."""
