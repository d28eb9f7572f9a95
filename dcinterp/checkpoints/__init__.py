"""Models on the disk: finding, reading, checking, describing and comparing them."""
