"""What happened while a model was trained."""
