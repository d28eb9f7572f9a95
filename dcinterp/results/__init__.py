"""What analyses return, and how a result remembers, saves and repeats the call that made it."""
