"""Golden losses and gradients of the standard library's blocks, from PyTorch in float64.

Each function below is the counterpart of the model of the same name beside this file, written from the papers' formulas, not
from the library. Parameters are random; they are stored with the result, so that the test needs no PyTorch:

    python make.py          # needs torch and safetensors; writes NAME.safetensors for each case

Tensors in a file: `input.*` (int32), `param.*`, `grad.*` (float64), `loss.*` and `total` (float64 scalars).
"""
import math, os, torch
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)
HERE = os.path.dirname(os.path.abspath(__file__))
B, V, D = 2, 11, 8


def rms(x, g, eps=1e-6):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * g


def angles(pos, dim, theta):
    return pos[..., None] * theta ** (-torch.arange(0, dim, 2) / dim)


def rope_half(x, a):  # x [B, T, H, dim], a [..., T, dim / 2]
    c, s = a.cos()[..., :, None, :], a.sin()[..., :, None, :]
    p, q = x.chunk(2, -1)
    return torch.cat((p * c - q * s, q * c + p * s), -1)


def rope_interleaved(x, a):
    c, s = a.cos()[..., :, None, :], a.sin()[..., :, None, :]
    p, q = x[..., 0::2], x[..., 1::2]
    return torch.stack((p * c - q * s, q * c + p * s), -1).flatten(-2)


def attend(q, k, v, scale, mask, sink=None):  # [B, T, H, *]
    s = torch.einsum("bthd,buhd->bhtu", q, k) * scale
    s = s.masked_fill(~mask, -torch.inf)
    if sink is not None:
        s = torch.cat((s, sink[None, :, None, None].expand(*s.shape[:3], 1)), -1)
    p = s.softmax(-1)
    if sink is not None:
        p = p[..., :-1]
    return torch.einsum("bhtu,buhd->bthd", p, v)


def causal(T):
    return torch.ones(T, T, dtype=torch.bool).tril()


def gqa(P, x, heads, kv, dh, rotate, mask, name="attention.", norm=False, bias=False, sink=False):
    B, T, _ = x.shape
    g = heads // kv
    q = torch.einsum("btd,dkgh->btkgh", x, P[name + "wq"])
    k = torch.einsum("btd,dkh->btkh", x, P[name + "wk"])
    v = torch.einsum("btd,dkh->btkh", x, P[name + "wv"])
    if bias:
        q, k, v = q + P[name + "bq"], k + P[name + "bk"], v + P[name + "bv"]
    if norm:
        q, k = rms(q, P[name + "q_norm.gain"]), rms(k, P[name + "k_norm.gain"])
    q = rotate(q.reshape(B, T, heads, dh))
    k = rotate(k).repeat_interleave(g, 2)
    v = v.repeat_interleave(g, 2)
    o = attend(q, k, v, dh ** -0.5, mask, P[name + "sink"].flatten() if sink else None)
    y = torch.einsum("btkgh,kghd->btd", o.reshape(B, T, kv, g, dh), P[name + "wo"])
    return y + P[name + "bo"] if bias else y


def cross_entropy(P, x, labels):
    logits = x @ P["head"]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1), logits


def embed_head(**shapes):
    return {"embed": (V, D), "head": (D, V), **shapes}


def attention_gqa():
    shapes = embed_head(**{"rms_norm.gain": (D,), "attention.wq": (D, 2, 2, 4), "attention.wk": (D, 2, 4),
                           "attention.wv": (D, 2, 4), "attention.wo": (2, 2, 4, D)})

    def run(P, I):
        x = P["embed"][I["tokens"]]
        a = angles(torch.arange(6.0), 4, 100.0)
        x = x + gqa(P, rms(x, P["rms_norm.gain"]), 4, 2, 4, lambda z: rope_half(z, a), causal(6))
        return {"ce": cross_entropy(P, x, I["labels"])[0]}, {"ce": 1.0}
    return shapes, 6, run


def attention_window():
    n = "attention."
    shapes = embed_head(**{"rms_norm.gain": (D,), n + "wq": (D, 2, 1, 4), n + "wk": (D, 2, 4), n + "wv": (D, 2, 4),
                           n + "wo": (2, 1, 4, D), n + "bq": (2, 1, 4), n + "bk": (2, 4), n + "bv": (2, 4), n + "bo": (D,),
                           n + "q_norm.gain": (4,), n + "k_norm.gain": (4,)})

    def run(P, I):
        x = P["embed"][I["tokens"]]
        a = angles(torch.arange(6.0), 4, 100.0)
        t = torch.arange(6)
        mask = causal(6) & (t[:, None] - t[None, :] < 3)
        x = x + gqa(P, rms(x, P["rms_norm.gain"]), 2, 2, 4, lambda z: rope_interleaved(z, a), mask, norm=True, bias=True)
        return {"ce": cross_entropy(P, x, I["labels"])[0]}, {"ce": 1.0}
    return shapes, 6, run


def attention_sinks():
    shapes = attention_gqa()[0] | {"attention.sink": (2, 2)}

    def run(P, I):
        x = P["embed"][I["tokens"]]
        a = angles(torch.arange(6.0), 4, 100.0)
        x = x + gqa(P, rms(x, P["rms_norm.gain"]), 4, 2, 4, lambda z: rope_half(z, a), causal(6), sink=True)
        return {"ce": cross_entropy(P, x, I["labels"])[0]}, {"ce": 1.0}
    return shapes, 6, run


def attention_packed():
    n = "attention."
    shapes = embed_head(**{"layer_norm.gain": (D,), "layer_norm.bias": (D,), n + "wq": (D, 2, 1, 4), n + "wk": (D, 2, 4),
                           n + "wv": (D, 2, 4), n + "wo": (2, 1, 4, D)})

    def run(P, I):
        x = P["embed"][I["tokens"]]
        a = angles(I["positions"].to(torch.float64), 4, 100.0)
        doc = I["documents"]
        mask = causal(8)[None, None] & (doc[:, None, :, None] == doc[:, None, None, :])
        h = torch.nn.functional.layer_norm(x, (D,), P["layer_norm.gain"], P["layer_norm.bias"], 1e-5)
        x = x + gqa(P, h, 2, 2, 4, lambda z: rope_half(z, a), mask)
        ce, logits = cross_entropy(P, x, I["labels"])
        valid = I["labels"] >= 0
        z = (logits.logsumexp(-1)[valid] ** 2).mean()
        return {"ce": ce, "z": z}, {"ce": 1.0, "z": 0.01}
    return shapes, 8, run


def mla():
    n = "mla."
    shapes = embed_head(**{"rms_norm.gain": (D,), n + "q_down": (D, 6), n + "q_norm.gain": (6,), n + "q_nope": (6, 2, 4),
                           n + "q_rope": (6, 2, 2), n + "kv_down": (D, 5), n + "kv_norm.gain": (5,), n + "k_rope": (D, 2),
                           n + "k_up": (5, 2, 4), n + "v_up": (5, 2, 3), n + "wo": (2, 3, D)})

    def run(P, I):
        x = P["embed"][I["tokens"]]
        h = rms(x, P["rms_norm.gain"])
        a = angles(torch.arange(6.0), 2, 100.0)
        cq = rms(h @ P[n + "q_down"], P[n + "q_norm.gain"])
        ckv = rms(h @ P[n + "kv_down"], P[n + "kv_norm.gain"])
        e = lambda c, w: torch.einsum("btc,chd->bthd", c, P[n + w])
        kr = rope_interleaved((h @ P[n + "k_rope"])[:, :, None], a).expand(-1, -1, 2, -1)
        q = torch.cat((e(cq, "q_nope"), rope_interleaved(e(cq, "q_rope"), a)), -1)
        k = torch.cat((e(ckv, "k_up"), kr), -1)
        o = attend(q, k, e(ckv, "v_up"), 6 ** -0.5, causal(6))
        x = x + torch.einsum("bthv,hvd->btd", o, P[n + "wo"])
        return {"ce": cross_entropy(P, x, I["labels"])[0]}, {"ce": 1.0}
    return shapes, 6, run


def short_conv(x, w, bias=None):  # x [B, T, C], w [C, K]
    z = torch.nn.functional.pad(x.transpose(1, 2), (w.shape[-1] - 1, 0))
    return torch.nn.functional.silu(torch.nn.functional.conv1d(z, w[:, None], bias, groups=w.shape[0])).transpose(1, 2)


def gated_delta_net():
    n = "gated_delta_net."
    h, r, k, v, j = 2, 2, 3, 4, 3
    shapes = embed_head(**{"rms_norm.gain": (D,), n + "wq": (D, h, k), n + "wk": (D, h, k), n + "wv": (D, h, r, v),
                           n + "wz": (D, h, r, v), n + "wb": (D, h, r), n + "wa": (D, h, r), n + "cq": (h, k, j),
                           n + "ck": (h, k, j), n + "cv": (h, r, v, j), n + "a_log": (h, r), n + "dt_bias": (h, r),
                           n + "o_norm.gain": (v,), n + "wo": (h, r, v, D)})

    def run(P, I):
        x = P["embed"][I["tokens"]]
        y = rms(x, P["rms_norm.gain"])
        conv = lambda w, c: short_conv(y @ P[n + w].flatten(1), P[n + c].flatten(0, -2)).unflatten(-1, P[n + w].shape[1:])
        unit = lambda z: z / (z.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
        q, key, val = unit(conv("wq", "cq")) * k ** -0.5, unit(conv("wk", "ck")), conv("wv", "cv")
        e = lambda w: torch.einsum("btd,dhr->bthr", y, P[n + w])
        beta = e("wb").sigmoid()
        decay = (-P[n + "a_log"].exp() * torch.nn.functional.softplus(e("wa") + P[n + "dt_bias"])).exp()
        S, out = torch.zeros(B, h, r, k, v), []
        for t in range(x.shape[1]):  # arXiv 2412.06464, equation 10, position by position
            S = decay[:, t, :, :, None, None] * S
            new = beta[:, t, :, :, None] * (val[:, t] - torch.einsum("bhk,bhrkv->bhrv", key[:, t], S))
            S = S + torch.einsum("bhk,bhrv->bhrkv", key[:, t], new)
            out.append(torch.einsum("bhk,bhrkv->bhrv", q[:, t], S))
        z = torch.einsum("btd,dhrv->bthrv", y, P[n + "wz"])
        o = rms(torch.stack(out, 1), P[n + "o_norm.gain"]) * torch.nn.functional.silu(z)
        x = x + torch.einsum("bthrv,hrvd->btd", o, P[n + "wo"])
        return {"ce": cross_entropy(P, x, I["labels"])[0]}, {"ce": 1.0}
    return shapes, 6, run


def mamba2(j=3, bias=False):
    n = "mamba2."
    s, h, p, m = 2, 2, 3, 4
    shapes = embed_head(**{"rms_norm.gain": (D,), n + "wz": (D, s, h, p), n + "wx": (D, s, h, p), n + "wb": (D, s, m),
                           n + "wc": (D, s, m), n + "wdt": (D, s, h), n + "cx": (s, h, p, j), n + "cb": (s, m, j),
                           n + "cc": (s, m, j), n + "a_log": (s, h), n + "dt_bias": (s, h), n + "skip": (s, h),
                           n + "gain": (s, h, p), n + "wo": (s, h, p, D)})
    if bias:
        shapes |= {n + "bx": (s, h, p), n + "bb": (s, m), n + "bc": (s, m)}

    def run(P, I):
        x = P["embed"][I["tokens"]]
        y = rms(x, P["rms_norm.gain"])

        def conv(of):
            w, b = P[n + "w" + of], P[n + "b" + of].flatten() if bias else None
            return short_conv(y @ w.flatten(1), P[n + "c" + of].flatten(0, -2), b).unflatten(-1, w.shape[1:])

        u, b, c = conv("x"), conv("b"), conv("c")
        dt = torch.nn.functional.softplus(torch.einsum("btd,dsh->btsh", y, P[n + "wdt"]) + P[n + "dt_bias"])
        decay = (-dt * P[n + "a_log"].exp()).exp()
        S, out = torch.zeros(B, s, h, m, p), []
        for t in range(x.shape[1]):  # arXiv 2405.21060, equation 2, position by position
            add = torch.einsum("bsm,bshp,bsh->bshmp", b[:, t], u[:, t], dt[:, t])
            S = decay[:, t, :, :, None, None] * S + add
            out.append(torch.einsum("bsm,bshmp->bshp", c[:, t], S))
        o = torch.stack(out, 1) + u * P[n + "skip"][..., None]
        z = torch.einsum("btd,dshp->btshp", y, P[n + "wz"])
        o = rms((o * torch.nn.functional.silu(z)).flatten(3), P[n + "gain"].flatten(1), 1e-5).view_as(o)
        x = x + torch.einsum("btshp,shpd->btd", o, P[n + "wo"])
        return {"ce": cross_entropy(P, x, I["labels"])[0]}, {"ce": 1.0}
    return shapes, 6, run


def mamba2_short():
    return mamba2(j=8, bias=True)


def swiglu(x, gate, up, down):
    return (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down


def moe_softmax():
    e = "swiglu_experts."
    shapes = embed_head(**{"rms_norm.gain": (D,), "softmax_router.router": (D, 4), e + "gate": (4, D, 6), e + "up": (4, D, 6),
                           e + "down": (4, 6, D), "shared.gate": (D, 6), "shared.up": (D, 6), "shared.down": (6, D)})

    def run(P, I):
        x = P["embed"][I["tokens"]]
        h = rms(x, P["rms_norm.gain"]).flatten(0, 1)
        logits = h @ P["softmax_router.router"]
        p = logits.softmax(-1)
        w, chosen = p.topk(2, -1)
        w = w / w.sum(-1, keepdim=True)
        y = torch.zeros_like(h)
        for i in range(4):
            share = (w * (chosen == i)).sum(-1, keepdim=True)
            y = y + share * swiglu(h, P[e + "gate"][i], P[e + "up"][i], P[e + "down"][i])
        y = y + swiglu(h, P["shared.gate"], P["shared.up"], P["shared.down"])
        f = torch.stack([(chosen == i).sum() for i in range(4)]) / chosen.numel()
        balance = 4 * (f * p.mean(0)).sum()
        z = (logits.logsumexp(-1) ** 2).mean()
        x = x + y.view_as(x)
        return {"ce": cross_entropy(P, x, I["labels"])[0], "balance": balance, "router_z": z}, \
            {"ce": 1.0, "balance": 0.02, "router_z": 0.001}
    return shapes, 6, run


def moe_sigmoid():
    e = "clamped_swiglu_experts."
    shapes = embed_head(**{"rms_norm.gain": (D,), "sigmoid_router.router": (D, 8), e + "gate": (8, D, 6), e + "up": (8, D, 6),
                           e + "down": (8, 6, D), e + "gate_bias": (8, 6), e + "up_bias": (8, 6), e + "down_bias": (8, D)})

    def run(P, I):
        x = P["embed"][I["tokens"]]
        h = rms(x, P["rms_norm.gain"])
        s = (h @ P["sigmoid_router.router"]).sigmoid()  # [B, T, 8]
        with torch.no_grad():
            strength = s.view(B, 6, 4, 2).topk(2, -1).values.sum(-1)
            best = torch.zeros(B, 6, 4, dtype=torch.bool).scatter(-1, strength.topk(2, -1).indices, True)
            chosen = s.masked_fill(~best.repeat_interleave(2, -1), -torch.inf).topk(2, -1).indices
        w = s.gather(-1, chosen)
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * 2.5
        y = torch.zeros_like(h)
        for i in range(8):
            a = (h @ P[e + "gate"][i] + P[e + "gate_bias"][i]).clamp(max=1.0)
            b = (h @ P[e + "up"][i] + P[e + "up_bias"][i]).clamp(-1.0, 1.0)
            out = (a * torch.sigmoid(1.702 * a) * (b + 1.0)) @ P[e + "down"][i] + P[e + "down_bias"][i]
            y = y + (w * (chosen == i)).sum(-1, keepdim=True) * out
        f = torch.stack([(chosen == i).sum((1, 2)) for i in range(8)], -1) / (6 * 2)
        p = (s / s.sum(-1, keepdim=True)).mean(1)
        balance = (8 * (f * p).sum(-1)).mean()
        x = x + y
        return {"ce": cross_entropy(P, x, I["labels"])[0], "balance": balance}, {"ce": 1.0, "balance": 0.02}
    return shapes, 6, run


def inputs(T, packed):
    text = torch.randint(0, V, (B, T + 1))
    I = {"tokens": text[:, :-1].clone(), "labels": text[:, 1:].clone()}
    if packed:
        I["documents"] = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1, 2, 2]])
        I["positions"] = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0], [0, 0, 1, 2, 3, 4, 0, 1]])
        ends = torch.cat((I["documents"][:, 1:] != I["documents"][:, :-1], torch.zeros(B, 1, dtype=torch.bool)), 1)
        I["labels"][ends] = -1
    return I


CASES = (attention_gqa, attention_window, attention_sinks, attention_packed, mla, gated_delta_net, mamba2, mamba2_short,
         moe_softmax, moe_sigmoid)
for case in CASES:
    torch.manual_seed(1)
    shapes, T, run = case()
    P = {n: (torch.randn(s) * 0.5 + (1.0 if n.endswith("gain") else 0.0)).requires_grad_() for n, s in shapes.items()}
    I = inputs(T, case is attention_packed)
    losses, weights = run(P, I)
    total = sum(weights[n] * loss for n, loss in losses.items())
    total.backward()
    out = {"total": total.detach().reshape(1)}
    out |= {f"loss.{n}": loss.detach().reshape(1) for n, loss in losses.items()}
    out |= {f"input.{n}": v.to(torch.int32).contiguous() for n, v in I.items()}
    out |= {f"param.{n}": v.detach().contiguous() for n, v in P.items()}
    out |= {f"grad.{n}": v.grad.contiguous() for n, v in P.items()}
    save_file(out, os.path.join(HERE, f"{case.__name__}.safetensors"))
    print(case.__name__, total.item())
