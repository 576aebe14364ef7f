"""What a published model says of its use: its end tokens, its settings, and how it writes a conversation."""
