"""What all figures share: style, grids, words, export."""
