"""The model of bench-tiny and bench-small as one would write it in PyTorch: the peer that `forebay bench --peers` times.

    python torch_peer.py SPEC

SPEC is a JSON object: the sizes `d heads layers experts topk ffn vocab seq batch`, the optimizer's `lr beta1 beta2 epsilon weight_decay clip`,
`threads`, `dtype` (f32, or bf16: autocast over f32 weights), `compile` (true: torch.compile), `batches` (how many come one after the other, again and
again), `turn` (how many rows of each come last instead of first) and `dump` (null, or a file that gets the first weights and the batches as safetensors). Then each line of stdin is a number of steps to do; each is answered with a line of JSON: the steps'
milliseconds and losses, and the process's peak memory. Needs a torch that has `grouped_mm` on the CPU (tried with 2.15).
"""
import ctypes
import itertools
import json
import struct
import sys
import time

import torch
import torch.nn.functional as F

spec = json.loads(sys.argv[1])
D, HEADS, LAYERS, EXPERTS = spec["d"], spec["heads"], spec["layers"], spec["experts"]
TOPK, WIDTH, VOCAB, SEQ, BATCH = spec["topk"], spec["ffn"], spec["vocab"], spec["seq"], spec["batch"]
COMPUTE = {"f32": torch.float32, "bf16": torch.bfloat16}[spec["dtype"]]
torch.manual_seed(0)
torch.set_num_threads(spec["threads"])


def linear(inner, outer):
    bound = inner**-0.5
    return torch.nn.Parameter(torch.empty(inner, outer).uniform_(-bound, bound))


def normal(*shape, std):
    return torch.nn.Parameter(torch.randn(*shape) * std)


def layer():
    return {
        "norm1": torch.nn.Parameter(torch.ones(D)),
        "qkv": linear(D, 3 * D),
        "out": linear(D, D),
        "norm2": torch.nn.Parameter(torch.ones(D)),
        "router": linear(D, EXPERTS),
        "gate_up": normal(EXPERTS, D, 2 * WIDTH, std=D**-0.5),
        "down": normal(EXPERTS, WIDTH, D, std=WIDTH**-0.5),
        "shared_gate_up": linear(D, 2 * WIDTH),
        "shared_down": linear(WIDTH, D),
    }


layers = [layer() for _ in range(LAYERS)]
embed, norm, head = normal(VOCAB, D, std=1.0), torch.nn.Parameter(torch.ones(D)), linear(D, VOCAB)
named = {"embed": embed, "norm": norm, "head": head}
named.update({f"layers.{i}.{name}": p for i, each in enumerate(layers) for name, p in each.items()})
parameters = list(named.values())
optimizer = torch.optim.AdamW(
    parameters,
    lr=spec["lr"],
    betas=(spec["beta1"], spec["beta2"]),
    eps=spec["epsilon"],
    weight_decay=spec["weight_decay"],
    fused=True,
)

half = D // HEADS // 2
angle = torch.arange(SEQ)[:, None] * 10_000 ** (-torch.arange(half) / half)
cos, sin = angle.cos(), angle.sin()


def rotate(x):
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def attention(x, p):
    q, k, v = (x @ p["qkv"]).view(BATCH, SEQ, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
    return y.transpose(1, 2).reshape(BATCH, SEQ, D) @ p["out"]


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def grouped(x, weights, ends):
    # Autocast does not know grouped_mm.
    return F.grouped_mm(x.to(COMPUTE), weights.to(COMPUTE), offs=ends)


def experts(x, p):
    x = x.view(-1, D)
    share, chosen = (x @ p["router"]).float().softmax(-1).topk(TOPK)
    share = share / share.sum(-1, keepdim=True)
    chosen = chosen.flatten()
    order = chosen.argsort(stable=True)
    # Counts without bincount, whose shape the compiler could not know.
    counts = (chosen[:, None] == torch.arange(EXPERTS)).sum(0)
    rows, ends = order // TOPK, counts.cumsum(0).int()
    y = grouped(swiglu(grouped(x[rows], p["gate_up"], ends)), p["down"], ends)
    y = y * share.flatten()[order, None].to(y.dtype)
    y = torch.zeros(BATCH * SEQ, D, dtype=y.dtype).index_add(0, rows, y)
    return (y + swiglu(x @ p["shared_gate_up"]) @ p["shared_down"]).view(BATCH, SEQ, D)


def loss_of(tokens, labels):
    x = embed[tokens]
    for p in layers:
        x = x + attention(F.rms_norm(x, (D,), p["norm1"], 1e-6), p)
        x = x + experts(F.rms_norm(x, (D,), p["norm2"], 1e-6), p)
    logits = F.rms_norm(x, (D,), norm, 1e-6) @ head
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


if spec["compile"]:
    loss_of = torch.compile(loss_of)


def step(text):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=COMPUTE == torch.bfloat16):
        loss = loss_of(text[:, :-1], text[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, spec["clip"])
    optimizer.step()
    return loss.item()


def write(path, tensors):
    """safetensors: u64 length of the header, the header, the tensors back to back."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        kind = {torch.float32: "F32", torch.int32: "I32"}[tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            out.write(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))


def peak_bytes():
    # Not getrusage: its peak of a new program may be that of the one that started it.
    try:
        with open("/proc/self/status") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    except OSError:
        return None


text = torch.randint(VOCAB, (spec["batches"], BATCH, SEQ + 1))
if spec["dump"]:
    tensors = {name: p.detach().contiguous() for name, p in named.items()}
    write(spec["dump"], tensors | {"text": text.int().contiguous()})
texts = itertools.cycle(text.roll(-spec["turn"], 1).unbind())
for line in sys.stdin:
    losses, times = [], []
    for _ in range(int(line)):
        start = time.perf_counter()
        losses.append(step(next(texts)))
        times.append(1e3 * (time.perf_counter() - start))
    print(json.dumps({"torch": torch.__version__, "ms": times, "losses": losses, "peak_bytes": peak_bytes()}), flush=True)
