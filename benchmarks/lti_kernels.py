"""The kernels of the time-invariant models beside the plain way of computing the same: time, ratio, peak memory.

    python benchmarks/lti_kernels.py                # every table, a few minutes
    python benchmarks/lti_kernels.py --threads 1    # on one thread
    python benchmarks/lti_kernels.py --only cauchy  # one of them: convolution, vandermonde, layer, cauchy

Each ratio comes from one run in which both sides take turns; times are medians in milliseconds, float32. The peak
memory above the inputs, in MiB, is that of a process of its own in which one side ran once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch import Tensor

from statewise.kernels.cauchy import cauchy
from statewise.kernels.fft_convolution import fft_convolution
from statewise.kernels.vandermonde import vandermonde

Side = Callable[..., Tensor]
Cases = dict[str, tuple[dict[str, Side], list[Tensor]]]  # title: sides by name, and what they are given


def plain_convolution(u: Tensor, K: Tensor) -> Tensor:
    """The line that everybody writes: zero-pad to twice the length, multiply the spectra of everything."""
    length = u.shape[1]
    spectrum = torch.fft.rfft(u.mT, n=2 * length) * torch.fft.rfft(K, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length].mT.contiguous()


def scipy_convolution(u: Tensor, K: Tensor) -> Tensor:
    import scipy.fft

    length = u.shape[1]
    workers, n = torch.get_num_threads(), scipy.fft.next_fast_len(2 * length, real=True)
    spectrum = scipy.fft.rfft(u.mT.numpy(), n, workers=workers) * scipy.fft.rfft(K.numpy(), n, workers=workers)
    return torch.from_numpy(scipy.fft.irfft(spectrum, n, workers=workers)[..., :length]).mT.contiguous()


def plain_vandermonde(c: Tensor, log_A: Tensor, length: int) -> Tensor:
    """All powers of all states in memory, as in minimal S4D."""
    powers = torch.exp(log_A.unsqueeze(-1) * torch.arange(length))
    return 2 * torch.einsum("wn,wnl->wl", c, powers).real


def two_level_vandermonde(c: Tensor, log_A: Tensor, length: int) -> Tensor:
    """Powers up to sqrt(length) twice and a complex matrix product, differentiated by PyTorch."""
    q = 2 ** ((length - 1).bit_length() // 2)
    small = torch.exp(log_A.unsqueeze(-1) * torch.arange(q))
    big = torch.exp(log_A.unsqueeze(-1) * (q * torch.arange(-(-length // q))))
    return 2 * ((c.unsqueeze(-1) * big).mT @ small).real.flatten(1)[:, :length]


def our_vandermonde(c: Tensor, log_A: Tensor, length: int) -> Tensor:
    return vandermonde(c, log_A.exp(), length)


def layer(generate: Side, convolve: Side) -> Side:
    return lambda u, c, log_A: convolve(u, generate(c, log_A, u.shape[1]))


def plain_cauchy(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    """Every fraction in memory, as in the first releases of S4."""
    v, Lambda = torch.cat([v, v.conj()], -1), torch.cat([Lambda, Lambda.conj()], -1)
    return (v.unsqueeze(-1) / (z - Lambda[:, None, :, None])).sum(2)


def convolution_inputs(w: int, length: int, batch: int) -> list[Tensor]:
    return [torch.randn(batch, length, w), torch.randn(w, length) / length]


def diagonal_inputs(w: int, n: int) -> list[Tensor]:
    log_A = torch.complex(-torch.rand(w, n) * 0.05, torch.rand(w, n) * 3)
    return [torch.randn(w, n, dtype=torch.complex64), log_A]


def cauchy_inputs(w: int, k: int, n: int, nodes: int) -> list[Tensor]:
    """Nodes on a circle inside the unit circle, mapped as the bilinear rule maps them."""
    omega = 0.99 * torch.polar(torch.ones(nodes), torch.linspace(0, torch.pi, nodes))
    Lambda = torch.complex(-torch.rand(w, n), torch.rand(w, n) * 100)
    return [torch.randn(w, k, n, dtype=torch.complex64), 2 * (1 - omega) / (1 + omega), Lambda]


def with_length(side: Side, length: int) -> Side:
    return lambda c, log_A: side(c, log_A, length)


def convolutions() -> Cases:
    sides = {"plain": plain_convolution, "scipy": scipy_convolution, "ours": fft_convolution}
    shapes = [(256, 4096), (256, 16_384), (1024, 1024)]
    return {f"{w} channels, L={n}, batch 8": (sides, convolution_inputs(w, n, 8)) for w, n in shapes}


def generation() -> Cases:
    cases = {}
    for length in (1024, 4096, 16_384):
        sides = {"plain": plain_vandermonde, "two-level": two_level_vandermonde, "ours": our_vandermonde}
        named = {name: with_length(side, length) for name, side in sides.items()}
        cases[f"S4D filter, N/2=32, 256 x {length}"] = (named, diagonal_inputs(256, 32))
    return cases


def layers() -> Cases:
    sides = {
        "plain": layer(plain_vandermonde, plain_convolution),
        "two-level": layer(two_level_vandermonde, plain_convolution),
        "ours": layer(our_vandermonde, fft_convolution),
    }
    inputs = [torch.randn(8, 4096, 256), *diagonal_inputs(256, 32)]
    return {"S4D layer, 256 x 4096, batch 8": (sides, inputs)}


def cauchy_sums() -> Cases:
    sides = {"plain": plain_cauchy, "ours": cauchy}
    return {"S4 Cauchy sums, 4 numerators, N/2=32, 256 x 2049": (sides, cauchy_inputs(256, 4, 32, 2049))}


TABLES = {"convolution": convolutions, "vandermonde": generation, "layer": layers, "cauchy": cauchy_sums}
HALF_BARS = {"layer": "at least 4x plain, 0.65x two-level", "cauchy": "at least 25x plain"}


def run_once(side: Side, inputs: list[Tensor], gradients: bool) -> None:
    if not gradients:
        with torch.no_grad():
            side(*inputs)
        return
    leaves = [m.detach().requires_grad_() for m in inputs]
    y = side(*leaves)
    torch.autograd.grad(y, leaves, torch.ones_like(y))


def medians(sides: dict[str, Side], inputs: list[Tensor], gradients: bool, seconds: float) -> dict[str, float]:
    """The sides take turns until the time is used up, each at least three times, after one run that does not count."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        run_once(side, inputs, gradients)
    begun = time.perf_counter()
    while len(next(iter(times.values()))) < 3 or time.perf_counter() - begun < seconds:
        for name, side in sides.items():
            start = time.perf_counter()
            run_once(side, inputs, gradients)
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(some) for name, some in times.items()}


def most_resident() -> float:
    """The most memory that this process has held so far, in MiB."""
    try:
        with open("/proc/self/status") as file:  # unlike getrusage, this does not begin with the parent's
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 2**10
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def peak_mebibytes(table: str, case: str, name: str, gradients: bool, threads: int) -> float:
    """How far one run raises the most memory that this process has held; so in a fresh process for each figure."""
    torch.set_num_threads(threads)
    sides, inputs = TABLES[table]()[case]
    small = [torch.ones(2, 64, 2), torch.ones(2, 64)]
    run_once(plain_convolution, small, True)  # so that what PyTorch loads on first use does not count
    run_once(fft_convolution, small, True)
    before = most_resident()
    run_once(sides[name], inputs, gradients)
    return most_resident() - before


def report(table: str, threads: int, seconds: float) -> None:
    bar = f"  (bar without C: {HALF_BARS[table]}, forward and backward)" if table in HALF_BARS else ""
    for case, (sides, inputs) in TABLES[table]().items():
        print(f"\n{case}{bar}")
        print(f"  {'':10}{'forward':>10}{'ratio':>8}{'MiB':>8}{'fwd+bwd':>12}{'ratio':>8}{'MiB':>8}")
        rows: dict[str, list[str]] = {name: [] for name in sides}
        for gradients in (False, True):
            able = {name: side for name, side in sides.items() if not (gradients and name == "scipy")}
            found = medians(able, inputs, gradients, seconds)
            for name in able:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    peak = pool.submit(peak_mebibytes, table, case, name, gradients, threads).result()
                ratio = found[name] / found["ours"]
                rows[name].append(f"{found[name]:{12 if gradients else 10}.1f}{ratio:7.1f}x{peak:8.0f}")
        for name, cells in rows.items():
            print(f"  {name:10}" + "".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=4.0, help="for each pair of sides, at least three turns")
    parser.add_argument("--only", choices=sorted(TABLES))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"PyTorch {torch.__version__}, {arguments.threads} threads, {torch.backends.cpu.get_cpu_capability()}")
    for table in TABLES:
        if arguments.only in (None, table):
            report(table, arguments.threads, arguments.seconds)


if __name__ == "__main__":
    main()
