"""Evaluation on labelled data: classes and numbers that a model predicts for whole sequences."""
