"""A study, and the loop that lets models answer it.

Open `evaluate` first."""
