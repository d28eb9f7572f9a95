"""What experiments share: pages and verdicts from tables of runs, and what their scripts ask of trained models."""
