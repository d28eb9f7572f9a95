"""What every room may use: errors for the person, progress, texts, file modes."""
