"""Selective copying: who remembers what matters and forgets what does not."""
