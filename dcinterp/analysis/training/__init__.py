"""What happened during training."""
