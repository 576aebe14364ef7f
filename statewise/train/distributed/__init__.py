"""One run over the processes that torchrun starts: torch's own DDP, FSDP2, tensor parallelism and meshes, applied from
outside to models that know nothing of it; and sequence parallelism, which is ours. See docs/distributed.md."""
