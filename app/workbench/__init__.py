"""What the pages share: models, results, inputs that a link restores, views, long work."""
