"""One run over the processes that torchrun starts: torch's own DDP, FSDP2, tensor parallelism and meshes, applied from
outside to models that need no change; and sequence parallelism, which is ours. See docs/distributed.md."""
