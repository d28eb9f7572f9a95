"""What a change inside the model does to its answers."""
