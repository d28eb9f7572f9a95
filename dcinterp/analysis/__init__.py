"""The analyses: a folder a subject, a file an analysis, named as its function."""
