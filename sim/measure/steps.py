"""Times training steps of decoders in plain PyTorch on one CUDA device, as a table that `forebay validate` reads.

    python sim/measure/steps.py > sim/tests/steps_h100.csv
    forebay validate sim/tests/steps_h100.csv

Parameters and gradients are bf16, and f32 copies of both are what AdamW (fused) works on: 20 bytes a parameter. Attention is cuDNN's, experts are its grouped products without a capacity. Each run is a process of its own, which begins with an empty device; its time is the median of
five steps after two, its memory what was allocated at most in those. About five minutes on an H100, whose memory it fills. Needs PyTorch 2.8 or newer, Linux.
"""
import csv
import json
import os
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

BF16 = torch.bfloat16
COLUMNS = ["id", "source", "model", "layers", "dense_layers", "hidden", "ffn_hidden", "moe_ffn_hidden", "experts", "topk", "shared_experts", "heads", "kv_heads", "head_dim", "vocab",
           "seq_len", "device", "devices_per_node", "n_devices", "tp", "pp", "vpp", "ep", "etp", "cp", "dp", "mbs", "gbs", "precision", "recompute", "notes_config",
           "step_time_s", "peak_mem_gb", "extra", "grade"]


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv, self.head = c["heads"], c["kv_heads"], c["head_dim"]
        self.q, self.k, self.v = (nn.Linear(c["hidden"], of * self.head, bias=False) for of in (self.heads, self.kv, self.kv))
        self.o = nn.Linear(self.heads * self.head, c["hidden"], bias=False)

    def forward(self, x, cos, sin):
        def rotated(x):
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat((-b, a), -1) * sin

        batch, seq, _ = x.shape
        q, k, v = (layer(x).view(batch, seq, of, self.head).transpose(1, 2) for layer, of in ((self.q, self.heads), (self.k, self.kv), (self.v, self.kv)))
        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True, enable_gqa=self.heads != self.kv)
        return self.o(y.transpose(1, 2).reshape(batch, seq, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate, self.up = (nn.Linear(c["hidden"], c["ffn_hidden"], bias=False) for _ in range(2))
        self.down = nn.Linear(c["ffn_hidden"], c["hidden"], bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.experts, self.topk = c["experts"], c["topk"]
        d, f = c["hidden"], c["moe_ffn_hidden"]
        self.router = nn.Linear(d, self.experts, bias=False)
        self.gate, self.up, self.down = (nn.Parameter(torch.empty(self.experts, *shape).normal_(std=0.02)) for shape in ((d, f), (d, f), (f, d)))

    def forward(self, x):
        shape, x = x.shape, x.reshape(-1, x.shape[-1])
        weight, expert = torch.softmax(self.router(x).float(), -1).topk(self.topk, -1)
        weight, expert = (weight / weight.sum(-1, keepdim=True)).to(x.dtype).reshape(-1), expert.reshape(-1)
        order = torch.argsort(expert, stable=True)
        token, ends = order // self.topk, torch.cumsum(torch.bincount(expert, minlength=self.experts), 0).to(torch.int32)
        rows = x[token]
        rows = F.silu(torch._grouped_mm(rows, self.gate, offs=ends)) * torch._grouped_mm(rows, self.up, offs=ends)
        rows = torch._grouped_mm(rows, self.down, offs=ends) * weight[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add_(0, token, rows).view(shape)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(c["hidden"]) for _ in range(2))
        self.attention, self.mlp = Attention(c), Experts(c) if c["experts"] else Mlp(c)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norms[0](x), cos, sin)
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.again = c["recompute"] == "full"
        self.embed, self.norm = nn.Embedding(c["vocab"], c["hidden"]), nn.RMSNorm(c["hidden"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.head = nn.Linear(c["hidden"], c["vocab"], bias=False)

    def forward(self, tokens, cos, sin):
        x = self.embed(tokens[:, :-1])
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if self.again else layer(x, cos, sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), tokens[:, 1:].reshape(-1))


def train(c):
    """Seconds of steps and of the host in the last one, and bytes allocated at most."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    with device:
        model = Model(c).to(BF16)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=0.02)
    parameters = list(model.parameters())
    masters = [p.detach().float().requires_grad_() for p in parameters]
    for m in masters:
        m.grad = torch.zeros_like(m)
    optimizer = torch.optim.AdamW(masters, lr=1e-5, fused=True)
    frequency = 1e4 ** -(torch.arange(0, c["head_dim"], 2, device=device) / c["head_dim"])
    angle = torch.outer(torch.arange(c["seq_len"], device=device), frequency).repeat(1, 2)
    cos, sin = angle.cos().to(BF16), angle.sin().to(BF16)
    micro = c["gbs"] // c["mbs"]
    tokens = torch.randint(c["vocab"], (micro, c["mbs"], c["seq_len"] + 1), device=device)
    if c["compiled"]:
        for layer in model.layers:
            layer.compile()
    times = []
    for step in range(7):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            for batch in tokens:
                (model(batch, cos, sin) / micro).backward()
        with torch.no_grad():
            torch._foreach_copy_([m.grad for m in masters], [p.grad for p in parameters])
            nn.utils.clip_grad_norm_(masters, 1.0)
            optimizer.step()
            torch._foreach_copy_(parameters, masters)
        model.zero_grad()
        host = time.perf_counter() - begin
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        if step == 1:
            torch.cuda.reset_peak_memory_stats()
    stats = torch.cuda.memory_stats()
    return dict(times=times[2:], host=host, allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved(), retries=stats["num_alloc_retries"])


def alone(c):
    """`train` in a process of its own; where it fails, why."""
    read, write = os.pipe()
    if not os.fork():
        os.close(read)
        try:
            result = train(c)
        except torch.OutOfMemoryError:
            result = "out of memory"
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text or '"it died"')


DENSE = {"160M": (768, 12, 12, 2048), "410M": (1024, 24, 16, 2816), "1B": (2048, 16, 16, 5504), "1.6B": (2048, 24, 16, 5504), "3B": (2560, 28, 20, 6912), "wide": (4096, 10, 32, 11008)}
EXPERTS = {"small experts": (1024, 16, 16, 8, 64, 64, 8, 512), "large experts": (2048, 10, 16, 16, 128, 16, 2, 3072)}


def dense(name, mbs, seq, vocab=32000, kv=None, micro=1, recompute="none", compiled=False):
    hidden, layers, heads, ffn = DENSE[name]
    return dict(model=name, hidden=hidden, layers=layers, dense_layers=layers, heads=heads, kv_heads=kv or heads, head_dim=hidden // heads, ffn_hidden=ffn, experts=0, mbs=mbs, gbs=mbs * micro,
                seq_len=seq, vocab=vocab, recompute=recompute, compiled=compiled)


def mixture(name, mbs, seq, recompute="none"):
    hidden, layers, heads, kv, head, experts, topk, ffn = EXPERTS[name]
    return dict(model=name, hidden=hidden, layers=layers, dense_layers=0, heads=heads, kv_heads=kv, head_dim=head, moe_ffn_hidden=ffn, experts=experts, topk=topk, shared_experts=0, mbs=mbs, gbs=mbs,
                seq_len=seq, vocab=32000, recompute=recompute, compiled=False)


def runs():
    yield dense("160M", 32, 1024)
    yield dense("160M", 16, 2048)
    for mbs, seq in [(8, 2048), (4, 4096), (16, 1024), (2, 8192)]:
        yield dense("410M", mbs, seq)
    for mbs, seq in [(8, 2048), (4, 4096), (2, 8192), (1, 16384), (16, 1024), (4, 2048), (12, 2048)]:
        yield dense("1B", mbs, seq)
    yield dense("1B", 1, 16384, kv=4)
    yield dense("1B", 8, 2048, recompute="full")
    yield dense("1B", 8, 2048, micro=4)
    yield dense("1B", 4, 2048, vocab=50257)
    yield dense("1B", 4, 2048, vocab=50304)
    yield dense("1.6B", 4, 2048, vocab=128256)
    yield dense("1.6B", 6, 2048)
    for mbs, seq, recompute in [(2, 2048, "none"), (1, 4096, "none"), (4, 2048, "full"), (8, 2048, "full")]:
        yield dense("3B", mbs, seq, recompute=recompute)
    for mbs, seq, recompute in [(4, 2048, "none"), (2, 4096, "none"), (1, 8192, "full")]:
        yield dense("wide", mbs, seq, recompute=recompute)
    for mbs, seq, recompute in [(8, 2048, "none"), (4, 4096, "full")]:
        yield mixture("small experts", mbs, seq, recompute)
    for mbs, seq, recompute in [(4, 2048, "none"), (8, 2048, "full")]:
        yield mixture("large experts", mbs, seq, recompute)
    yield dense("1B", 8, 2048, compiled=True)
    yield dense("wide", 2, 4096, compiled=True)


def main():
    device, out = sys.argv[1] if len(sys.argv) > 1 else "H100", csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n", extrasaction="ignore")
    out.writeheader()
    for number, c in enumerate(runs(), 1):
        result = alone(c)
        if isinstance(result, str):
            print(f"{c['model']} {c['mbs']} × {c['seq_len']}: {result}", file=sys.stderr)
            continue
        seconds = statistics.median(result["times"])
        about = f"host {result['host']:.4g} s; reserved {result['reserved'] / 1e9:.4g} GB; allocator retries {result['retries']}"
        ones = dict.fromkeys(["n_devices", "tp", "pp", "vpp", "ep", "etp", "cp", "dp"], 1)
        out.writerow(dict(c, **ones, id=f"steps-{number:02}", source="PyTorch 2 eager" + (", torch.compile" if c["compiled"] else ""), device=device, devices_per_node=8, precision="bf16",
                          experts=c["experts"] or "", notes_config=f"PyTorch {torch.__version__}, no distribution, cuDNN attention; peak is max_memory_allocated", step_time_s=f"{seconds:.5g}",
                          peak_mem_gb=f"{result['allocated'] / 1e9:.5g}", extra=about, grade="A"))
        sys.stdout.flush()


main()
