"""bench-tiny as one would write it in PyTorch, eager, f32: the peer of `forebay train examples/models/bench-tiny.moe`.

Prints the milliseconds of each timed step, one line of JSON. Needs torch >= 2.9 (grouped_mm on the CPU).
"""
import json
import time

import torch
import torch.nn.functional as F

BATCH, SEQ, LAYERS, D, HEADS, EXPERTS, TOPK, WIDTH, VOCAB = 8, 256, 4, 256, 8, 8, 2, 512, 256
WARM_UP, STEPS = 3, 12
torch.manual_seed(0)
torch.set_num_threads(2)


def weight(*shape, scale):
    return torch.nn.Parameter(torch.randn(*shape) * scale)


def linear(inner, outer):
    return weight(inner, outer, scale=inner**-0.5)


def layer():
    return {
        "norm1": torch.nn.Parameter(torch.ones(D)),
        "qkv": linear(D, 3 * D),
        "out": linear(D, D),
        "norm2": torch.nn.Parameter(torch.ones(D)),
        "router": linear(D, EXPERTS),
        "gate_up": weight(EXPERTS, D, 2 * WIDTH, scale=D**-0.5),
        "down": weight(EXPERTS, WIDTH, D, scale=WIDTH**-0.5),
        "shared_gate_up": linear(D, 2 * WIDTH),
        "shared_down": linear(WIDTH, D),
    }


layers = [layer() for _ in range(LAYERS)]
embed, norm, head = weight(VOCAB, D, scale=1.0), torch.nn.Parameter(torch.ones(D)), linear(D, VOCAB)
parameters = [embed, norm, head] + [p for each in layers for p in each.values()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

half = D // HEADS // 2
angle = torch.arange(SEQ)[:, None] * 10_000 ** (-torch.arange(half) / half)
cos, sin = angle.cos(), angle.sin()


def rotate(x):
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attention(x, p):
    q, k, v = (x @ p["qkv"]).view(BATCH, SEQ, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
    return y.transpose(1, 2).reshape(BATCH, SEQ, D) @ p["out"]


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def experts(x, p):
    x = x.view(-1, D)
    share, chosen = (x @ p["router"]).softmax(-1).topk(TOPK)
    share = share / share.sum(-1, keepdim=True)
    order = chosen.flatten().argsort(stable=True)
    ends = torch.bincount(chosen.flatten(), minlength=EXPERTS).cumsum(0).int()
    rows = order // TOPK
    y = F.grouped_mm(swiglu(F.grouped_mm(x[rows], p["gate_up"], offs=ends)), p["down"], offs=ends)
    y = torch.zeros_like(x).index_add(0, rows, y * share.flatten()[order, None])
    return (y + swiglu(x @ p["shared_gate_up"]) @ p["shared_down"]).view(BATCH, SEQ, D)


def loss_of(tokens, labels):
    x = embed[tokens]
    for p in layers:
        x = x + attention(F.rms_norm(x, (D,), p["norm1"], 1e-6), p)
        x = x + experts(F.rms_norm(x, (D,), p["norm2"], 1e-6), p)
    logits = F.rms_norm(x, (D,), norm, 1e-6) @ head
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def step(text):
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(text[:, :-1], text[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    return loss.item()


text = torch.randint(VOCAB, (BATCH, SEQ + 1))
losses, times = [], []
for number in range(WARM_UP + STEPS):
    start = time.perf_counter()
    losses.append(step(text))
    times.append(1e3 * (time.perf_counter() - start))
assert losses[-1] < losses[0]
print(json.dumps({"torch": torch.__version__, "step_ms": times[WARM_UP:]}))
