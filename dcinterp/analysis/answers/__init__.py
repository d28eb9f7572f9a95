"""What a model answers, and how often it is right."""
