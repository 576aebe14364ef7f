"""A day with a GPU: everything that only a card can tell, in stages that are saved and resumed."""
