"""What a run is told to do."""
