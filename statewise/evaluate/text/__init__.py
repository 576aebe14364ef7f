"""Of a text: how well a model predicts it, how likely it is after another, and what compressors make of it."""
