"""What the released layouts share: tensors of the attention, and tables of names."""
