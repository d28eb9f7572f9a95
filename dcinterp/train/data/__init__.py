"""What a run reads."""
