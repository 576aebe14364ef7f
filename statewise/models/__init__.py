"""Whole models: language models, classifiers, regressors and forecasters, built of blocks of mixers and MLPs."""
