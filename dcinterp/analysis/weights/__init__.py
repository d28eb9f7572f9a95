"""What weights alone say: OV circuits and head diversity."""
