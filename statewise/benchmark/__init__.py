"""Our kernels and models next to those of others, measured by turns in one run.

``statewise benchmark`` lists the workloads, ``statewise benchmark bars`` holds every promise against this machine,
``statewise profile`` tells where the time of a step goes.
"""
