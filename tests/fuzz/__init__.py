"""Seeded property tests: random cases against slow, obvious answers. ``make fuzz MINUTES=30``; see docs/security.md."""
