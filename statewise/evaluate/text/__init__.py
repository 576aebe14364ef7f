"""Evaluation on text: how well a model predicts it, how likely it is after another text, and how it compresses."""
