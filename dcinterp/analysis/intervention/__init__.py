"""What a change inside the model does."""
