"""One sentence through a recurrent model of OpenNMT-py by the formulas, in float64.

From the weights as they are named in a file, one position and one unit at a time: what the
models are compared with.
"""

import torch
from torch import Tensor

from tests.support.random_models import Weights


def logits(weights: Weights, options: dict, src: Tensor, tgt: Tensor) -> Tensor:
    """src (S,), tgt (T,) -> logits (T, V)."""
    w = {name: weight.double() for name, weight in weights.items()}
    generator = "generator.0" if "generator.0.weight" in w else "generator"
    hidden, _, _ = decode(weights, options, src, tgt)
    return torch.stack([linear(w, generator, h) for h in hidden])


def decode(
    weights: Weights, options: dict, src: Tensor, tgt: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """src (S,), tgt (T,) -> T attentional vectors (D,), T attentions (S,), the bank (S, D)."""
    w = {name: weight.double() for name, weight in weights.items()}
    bank, state = encode(w, options, src)
    feed = torch.zeros_like(state[0][-1])
    hidden, attentions = [], []
    for word in tgt:
        x = w["decoder.embeddings.make_embedding.emb_luts.0.weight"][word]
        if options.get("input_feed", True):
            x = torch.cat([x, feed])
        output, state = decoder_cells(w, options, x, state)
        kind = options.get("attention", "general")
        attn = attention(w, "decoder.attn", kind, output, bank)
        feed = output
        if kind != "none":
            feed = linear(w, "decoder.attn.linear_out", torch.cat([attn @ bank, output]))
        if kind in ("dot", "general"):
            feed = feed.tanh()
        if options.get("context_gate"):
            feed = gate(w, options["context_gate"], x, output, feed)
        hidden.append(feed)
        attentions.append(attn)
    return hidden, attentions, bank


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", torch.zeros(()))


def cell(w: Weights, prefix: str, suffix: str, x: Tensor, past: list[Tensor]):
    """past and result: [h] of a GRU, [h, c] of an LSTM."""
    of_x = w[f"{prefix}weight_ih{suffix}"] @ x + w[f"{prefix}bias_ih{suffix}"]
    of_h = w[f"{prefix}weight_hh{suffix}"] @ past[0] + w[f"{prefix}bias_hh{suffix}"]
    if len(past) == 2:
        i, f, g, o = (of_x + of_h).chunk(4)
        c = f.sigmoid() * past[1] + i.sigmoid() * g.tanh()
        return [o.sigmoid() * c.tanh(), c]
    (xr, xz, xn), (hr, hz, hn) = of_x.chunk(3), of_h.chunk(3)
    z = (xz + hz).sigmoid()
    return [(1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh() + z * past[0]]


def encode(w: Weights, options: dict, src: Tensor):
    """bank (S, D), and per part (h, c) the last state of each layer."""
    xs = list(w["encoder.embeddings.make_embedding.emb_luts.0.weight"][src])
    n_parts = 2 if options.get("cell", "LSTM") == "LSTM" else 1
    directions = ["", "_reverse"] if options.get("brnn") else [""]
    last = []  # per layer and direction
    while f"encoder.rnn.weight_hh_l{len(last) // len(directions)}" in w:
        layer, outputs = len(last) // len(directions), []
        for direction in directions:
            past = [torch.zeros(w[f"encoder.rnn.weight_hh_l{layer}"].size(1)).double()] * n_parts
            states = []
            for x in reversed(xs) if direction else xs:
                past = cell(w, "encoder.rnn.", f"_l{layer}{direction}", x, past)
                states.append(past[0])
            outputs.append(states[::-1] if direction else states)
            last.append(past)
        xs = [torch.cat(both) for both in zip(*outputs)]
    hidden = []
    for i in range(n_parts):
        part = torch.stack([states[i] for states in last])  # (layers * directions, d)
        if f"encoder.bridge.{i}.weight" in w:
            folded = part.reshape(len(directions), -1)
            crossed = [linear(w, f"encoder.bridge.{i}", row).relu() for row in folded]
            part = torch.stack(crossed).reshape(part.shape)
        hidden.append(part.reshape(len(part) // len(directions), -1))
    return torch.stack(xs), hidden


def decoder_cells(w: Weights, options: dict, x: Tensor, hidden: list[Tensor]):
    new = []
    for i in range(len(hidden[0])):
        feeds = options.get("input_feed", True)
        names = (f"decoder.rnn.layers.{i}.", "") if feeds else ("decoder.rnn.", f"_l{i}")
        new.append(cell(w, *names, x, [part[i] for part in hidden]))
        x = new[-1][0]
    return x, [torch.stack(parts) for parts in zip(*new)]


def attention(w: Weights, name: str, kind: str, output: Tensor, bank: Tensor) -> Tensor:
    """output (D,), bank (S, D) -> weights (S,)."""
    if kind == "mlp":
        query = linear(w, f"{name}.linear_query", output)
        keys = [linear(w, f"{name}.linear_context", h) for h in bank]
        scores = [linear(w, f"{name}.v", (query + key).tanh())[0] for key in keys]
    else:
        query = linear(w, f"{name}.linear_in", output) if kind == "general" else output
        scores = [query @ h for h in bank]
    return torch.stack(scores).softmax(0)


def gate(w: Weights, kind: str, x: Tensor, output: Tensor, attended: Tensor) -> Tensor:
    name = "decoder.context_gate.context_gate"
    z = linear(w, f"{name}.gate", torch.cat([x, output, attended])).sigmoid()
    s = linear(w, f"{name}.source_proj", attended)
    t = linear(w, f"{name}.target_proj", torch.cat([x, output]))
    mixed = {"source": t + z * s, "target": z * t + s, "both": (1 - z) * t + z * s}
    return mixed[kind].tanh()
