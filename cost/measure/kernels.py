"""Times kernels of PyTorch on one CUDA device, for `cost/tests/kernels.rs` to compare with the formulas of the cost model.

    python cost/measure/kernels.py > cost/tests/kernels_h100.csv

One line is one kernel: what it is, its shape, and the seconds that it takes, all launches made before it begins: the middle of three times that 4 to 200 calls take,
about 15 ms. Products and streams go through up to 16 sets of inputs, so that those of more than 10 MB are in memory and not in a cache; attention and experts
have the same inputs each time. A minute on an H100, 10 GB of its memory. Needs PyTorch 2.8 or newer.
"""
import csv
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = torch.device("cuda")
BF16 = torch.bfloat16
COLUMNS = ["kind", "variant", "groups", "m", "n", "k", "batch", "heads", "kv_heads", "seq", "head", "bytes", "seconds"]
CACHE = 160e6      # bytes of inputs that are gone through before one is used again
HOST = 100e-6     # seconds that the host needs to start a kernel, at most


def timed(call, budget=0.015, most=200):
    """Seconds of one of many calls, which have all been started before the first begins. `call(i)` has inputs of its own for each i."""
    for i in range(4):
        call(i)
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run(calls):
        torch.cuda._sleep(int(1.8e9 * calls * HOST))
        begin.record()
        for i in range(calls):
            call(i)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / calls

    one = run(4)
    calls = max(4, min(most, int(budget / max(one, 1e-6))))
    return sorted(run(calls) for _ in range(3))[1]


def copies(of):
    return max(1, min(16, math.ceil(CACHE / of)))


def random(*shape):
    return torch.empty(*shape, device=DEVICE).normal_(std=0.5).to(BF16)


def product(m, n, k, layout):
    """(m × k) · (k × n) with operands as they lie in a forward pass (nt), a gradient of inputs (nn) or of weights (tn)."""
    count = copies(2 * (m * k + n * k))
    left = [random(k, m).t() if layout == "tn" else random(m, k) for _ in range(count)]
    right = [random(n, k).t() if layout == "nt" else random(k, n) for _ in range(count)]
    out = torch.empty(m, n, device=DEVICE, dtype=BF16)
    return timed(lambda i: torch.mm(left[i % count], right[i % count], out=out))


def grouped(groups, rows, n, k, layout):
    """One product for each of `groups` experts, each with `rows` rows, in one kernel; `tn` is the gradient of weights (k is summed over rows)."""
    x, ends = random(groups * rows, k), torch.arange(1, groups + 1, device=DEVICE, dtype=torch.int32) * rows
    if layout == "tn":
        dy = random(groups * rows, n)
        return timed(lambda _: torch._grouped_mm(dy.t(), x, offs=ends))
    weights = random(groups, n, k).transpose(1, 2)
    return timed(lambda _: torch._grouped_mm(x, weights, offs=ends))


def attention(backend, batch, heads, kv_heads, seq, head):
    """Causal attention, forwards and backwards."""
    def tensor(of):
        return random(batch, of, seq, head).requires_grad_()

    q, k, v = tensor(heads), tensor(kv_heads), tensor(kv_heads)
    call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
    with sdpa_kernel({"flash2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]):
        forward = timed(lambda _: call())
        out = call()
        gradient = torch.randn_like(out)
        return forward, timed(lambda _: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))


def products(say):
    for m in [1024, 4096, 16384]:
        for k in [512, 1024, 2048, 4096, 8192]:
            for n in [512, 1024, 2048, 5120, 14336]:
                say("product", "nt", groups=1, m=m, n=n, k=k, seconds=product(m, n, k, "nt"))
    for layout in ["nn", "tn"]:
        for m, n, k in [(4096, 1024, 4096), (4096, 4096, 1024), (4096, 4096, 14336), (2048, 2048, 2048), (8192, 8192, 8192)]:
            say("product", layout, groups=1, m=m, n=n, k=k, seconds=product(m, n, k, layout))
    # Rows of a matrix that do not begin at multiples of 16 bytes: 8, 4 and 2 bytes.
    for width in [50256, 50260, 50258, 50257]:
        say("odd", "nt", groups=1, m=4096, n=width, k=2048, seconds=product(4096, width, 2048, "nt"))
        say("odd", "nn", groups=1, m=4096, n=2048, k=width, seconds=product(4096, 2048, width, "nn"))
        say("odd", "tn", groups=1, m=width, n=2048, k=4096, seconds=product(width, 2048, 4096, "tn"))
    for width in [2056, 2052, 2050, 2049]:
        say("odd", "nt", groups=1, m=4096, n=width, k=2048, seconds=product(4096, width, 2048, "nt"))


def sustained(say):
    """The rate that the power limit leaves: a large product for four seconds."""
    left, right = random(8192, 8192), random(8192, 8192)
    out = torch.empty_like(left)
    end = time.time() + 4
    while time.time() < end:
        seconds = timed(lambda _: torch.mm(left, right, out=out), budget=0.3)
    say("sustained", "nt", groups=1, m=8192, n=8192, k=8192, seconds=seconds)


def experts(say):
    for groups, n, k in [(8, 14336, 4096), (8, 4096, 14336), (32, 2048, 7168), (64, 1408, 2048), (128, 768, 2048), (128, 2048, 768)]:
        for rows in [32, 128, 512, 2048]:
            if groups * rows > 65536:
                continue
            say("product", "grouped", groups=groups, m=rows, n=n, k=k, seconds=grouped(groups, rows, n, k, "nt"))
            say("product", "grouped_tn", groups=groups, m=n, n=k, k=rows, seconds=grouped(groups, rows, n, k, "tn"))


def attentions(say):
    shapes = [(1, 8, 8, 2048, 128), (1, 16, 16, 2048, 128), (4, 16, 16, 2048, 128), (16, 32, 32, 2048, 128), (1, 4, 4, 4096, 128), (1, 32, 32, 4096, 128),
              (4, 32, 32, 4096, 128), (1, 32, 8, 8192, 128), (1, 8, 8, 8192, 128), (1, 4, 4, 16384, 128), (1, 32, 32, 16384, 128), (1, 8, 8, 32768, 128),
              (8, 32, 32, 1024, 128), (4, 16, 16, 2048, 64), (2, 32, 32, 4096, 64), (1, 16, 16, 16384, 64)]
    for backend in ["flash2", "cudnn"]:
        for batch, heads, kv_heads, seq, head in shapes:
            forward, backward = attention(backend, batch, heads, kv_heads, seq, head)
            shape = dict(batch=batch, heads=heads, kv_heads=kv_heads, seq=seq, head=head)
            say("attention", backend + " forward", seconds=forward, **shape)
            say("attention", backend + " backward", seconds=backward, **shape)


def streams(say):
    for power in range(16, 31, 2):
        n = 1 << power
        count = copies(4 * n)
        left = [torch.empty(n, device=DEVICE, dtype=BF16).normal_() for _ in range(count)]
        right = [torch.empty_like(x) for x in left]
        say("stream", "copy", bytes=4 * n, seconds=timed(lambda i: right[i % count].copy_(left[i % count])))
        say("stream", "multiply", bytes=6 * n, seconds=timed(lambda i: torch.mul(left[i % count], right[i % count], out=left[i % count])))
    n = 1 << 28
    parameters = [torch.zeros(1 << 24, device=DEVICE, requires_grad=True) for _ in range(n >> 24)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    say("stream", "AdamW", bytes=28 * n, seconds=timed(lambda _: optimizer.step(), most=10))


def losses(say):
    """Cross entropy of logits in bf16 on a copy of them in f32, and its gradient."""
    for rows, vocabulary in [(2048, 32000), (8192, 49152), (4096, 128256)]:
        logits, labels = random(rows, vocabulary).requires_grad_(), torch.randint(vocabulary, (rows,), device=DEVICE)
        say("loss", "forward", m=rows, n=vocabulary, seconds=timed(lambda _: F.cross_entropy(logits.float(), labels)))
        loss = F.cross_entropy(logits.float(), labels)
        say("loss", "backward", m=rows, n=vocabulary, seconds=timed(lambda _: torch.autograd.grad(loss, logits, retain_graph=True)))


def memory(say):
    """Bytes of the device's memory, and what is taken of it before a program has allocated anything: by a context, by it and libraries, by each communicator more."""
    import torch.distributed as dist

    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    say("memory", "total", bytes=total)
    say("memory", "context", bytes=total - free)
    x = random(256, 256)
    (x @ x).sum().item()
    attention("cudnn", 1, 8, 8, 1024, 128)
    torch.cuda.empty_cache()
    before = total - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
    say("memory", "libraries", bytes=before)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29517", rank=0, world_size=1)
    for group in [None, dist.new_group([0]), dist.new_group([0])]:
        dist.all_reduce(torch.ones(1 << 20, device=DEVICE), group=group)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        now = total - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
        say("memory", "communicator", bytes=now - before)
        before = now
    dist.destroy_process_group()


def main():
    out = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    out.writeheader()

    def say(kind, variant, seconds=None, **shape):
        seconds = f"{seconds:.4g}" if seconds is not None else ""
        out.writerow(dict(kind=kind, variant=variant, seconds=seconds, **shape))
        sys.stdout.flush()

    for part in [memory, streams, products, experts, attentions, sustained, losses]:
        part(say)
        torch.cuda.empty_cache()


main()
