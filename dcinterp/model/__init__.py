"""The model: a decoder whose attention heads are composed, as a citizen of `transformers`."""
