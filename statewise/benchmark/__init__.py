"""Our kernels and models beside those of others, measured in turns in one run.

``statewise benchmark`` lists the workloads, ``statewise benchmark bars`` holds every promise against this machine,
``statewise profile`` tells where the time of a step goes.
"""
