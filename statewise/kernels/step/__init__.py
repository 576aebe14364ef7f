"""One token of each row through a Mamba-2 layer, on a GPU: three kernels instead of some twenty-five.

    projected = W_in RMSNorm(x)                              norm_matvec
    u = SSD(convolution(projected)) * SiLU(z)                mamba2_step, which writes over the system's state
    x = x + W_out RMSNorm(u), the convolution's shift        norm_matvec again

A step of a few rows reads every weight once and multiplies it with as few numbers: it takes as long as the reading.
So the norm of the rows is computed again by each program, while its weights are on their way. ``triton.py`` has the
launches, ``pytorch.py`` the definitions. Who calls them: statewise/decoding/gpu_layers.py.
"""
