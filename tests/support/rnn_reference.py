"""Reference implementation of OpenNMT-py's recurrent models for one sentence, in float64.

It uses the weight names of the files, and computes one position and one cell at a time.
"""

import torch
from torch import Tensor

from tests.support.random_models import Tensors


def compute_logits(weights: Tensors, options: dict, src: Tensor, tgt: Tensor) -> Tensor:
    """Compute the logits of one sentence.

    Args:
        weights: weights by name
        options: options of OpenNMT-py, with cell and attention
        src: source ids (S,), int64
        tgt: decoder input (T,), int64

    Returns:
        Logits (T, V), float64.
    """
    w = {name: weight.double() for name, weight in weights.items()}
    generator = "generator.0" if "generator.0.weight" in w else "generator"
    hidden, _, _ = decode(weights, options, src, tgt)
    return torch.stack([apply_linear(w, generator, h) for h in hidden])


def decode(
    weights: Tensors, options: dict, src: Tensor, tgt: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Decode one sentence.

    Args:
        weights: weights by name
        options: options of OpenNMT-py, with cell and attention
        src: source ids (S,), int64
        tgt: decoder input (T,), int64

    Returns:
        T attentional vectors (D,), T attentions (S,), and the memory bank (S, D).
    """
    w = {name: weight.double() for name, weight in weights.items()}
    bank, state = encode(w, options, src)
    feed = torch.zeros_like(state[0][-1])
    hidden, attentions = [], []
    for word in tgt:
        x = w["decoder.embeddings.make_embedding.emb_luts.0.weight"][word]
        if options.get("input_feed", True):
            x = torch.cat([x, feed])
        output, state = run_decoder_cells(w, options, x, state)
        score = options.get("attention", "general")
        attn = compute_attention(w, "decoder.attn", score, output, bank)
        feed = output
        if score != "none":
            feed = apply_linear(w, "decoder.attn.linear_out", torch.cat([attn @ bank, output]))
        if score in ("dot", "general"):
            feed = feed.tanh()
        if options.get("context_gate"):
            feed = apply_gate(w, options["context_gate"], x, output, feed)
        hidden.append(feed)
        attentions.append(attn)
    return hidden, attentions, bank


def apply_linear(w: Tensors, name: str, x: Tensor) -> Tensor:
    """Apply a linear layer to x (D,).

    Args:
        w: weights by name
        name: name of the layer
        x: the input
    """
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", torch.zeros(()))


def run_cell(w: Tensors, prefix: str, suffix: str, x: Tensor, past: list[Tensor]):
    """Run an RNN cell.

    Args:
        w: weights by name
        prefix: start of the weight names
        suffix: end of the weight names
        x: input (d_input,)
        past: previous states (D,): [h] of a GRU, [h, c] of an LSTM

    Returns:
        The new states.
    """
    from_x = w[f"{prefix}weight_ih{suffix}"] @ x + w[f"{prefix}bias_ih{suffix}"]
    from_h = w[f"{prefix}weight_hh{suffix}"] @ past[0] + w[f"{prefix}bias_hh{suffix}"]
    if len(past) == 2:
        i, f, g, o = (from_x + from_h).chunk(4)
        c = f.sigmoid() * past[1] + i.sigmoid() * g.tanh()
        return [o.sigmoid() * c.tanh(), c]
    (xr, xz, xn), (hr, hz, hn) = from_x.chunk(3), from_h.chunk(3)
    z = (xz + hz).sigmoid()
    return [(1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh() + z * past[0]]


def encode(w: Tensors, options: dict, src: Tensor):
    """Encode one sentence.

    Args:
        w: weights by name
        options: options of OpenNMT-py
        src: source ids (S,), int64

    Returns:
        The memory bank (S, D), and the final h (and c) of each layer.
    """
    xs = list(w["encoder.embeddings.make_embedding.emb_luts.0.weight"][src])
    n_states = 2 if options.get("cell", "LSTM") == "LSTM" else 1
    directions = ["", "_reverse"] if options.get("brnn") else [""]
    final = []  # per layer and direction
    while f"encoder.rnn.weight_hh_l{len(final) // len(directions)}" in w:
        layer, outputs = len(final) // len(directions), []
        for direction in directions:
            past = [torch.zeros(w[f"encoder.rnn.weight_hh_l{layer}"].size(1)).double()] * n_states
            states = []
            for x in reversed(xs) if direction else xs:
                past = run_cell(w, "encoder.rnn.", f"_l{layer}{direction}", x, past)
                states.append(past[0])
            outputs.append(states[::-1] if direction else states)
            final.append(past)
        xs = [torch.cat(both) for both in zip(*outputs)]
    hidden = []
    for i in range(n_states):
        state = torch.stack([states[i] for states in final])  # (layers * directions, d)
        if f"encoder.bridge.{i}.weight" in w:
            folded = state.reshape(len(directions), -1)
            bridged = [apply_linear(w, f"encoder.bridge.{i}", row).relu() for row in folded]
            state = torch.stack(bridged).reshape(state.shape)
        hidden.append(state.reshape(len(state) // len(directions), -1))
    return torch.stack(xs), hidden


def run_decoder_cells(w: Tensors, options: dict, x: Tensor, hidden: list[Tensor]):
    """Run all decoder cells.

    Args:
        w: weights by name
        options: options of OpenNMT-py
        x: input (d_input,)
        hidden: previous states of all layers, (L, D) each

    Returns:
        The output (D,) and the new states.
    """
    new = []
    for i in range(len(hidden[0])):
        has_input_feed = options.get("input_feed", True)
        names = (f"decoder.rnn.layers.{i}.", "") if has_input_feed else ("decoder.rnn.", f"_l{i}")
        new.append(run_cell(w, *names, x, [states[i] for states in hidden]))
        x = new[-1][0]
    return x, [torch.stack(states) for states in zip(*new)]


def compute_attention(w: Tensors, name: str, score: str, output: Tensor, bank: Tensor) -> Tensor:
    """Compute attention weights (S,).

    Args:
        w: weights by name
        name: name of the attention
        score: the score function
        output: decoder output (D,)
        bank: encoder states (S, D)
    """
    if score == "mlp":
        query = apply_linear(w, f"{name}.linear_query", output)
        keys = [apply_linear(w, f"{name}.linear_context", h) for h in bank]
        scores = [apply_linear(w, f"{name}.v", (query + key).tanh())[0] for key in keys]
    else:
        query = apply_linear(w, f"{name}.linear_in", output) if score == "general" else output
        scores = [query @ h for h in bank]
    return torch.stack(scores).softmax(0)


def apply_gate(w: Tensors, gate_type: str, x: Tensor, output: Tensor, attended: Tensor) -> Tensor:
    """Apply the context gate.

    Args:
        w: weights by name
        gate_type: source, target or both
        x: decoder input (d_input,)
        output: decoder output (D,)
        attended: attentional vector (D,)

    Returns:
        The gated vector (D,).
    """
    name = "decoder.context_gate.context_gate"
    z = apply_linear(w, f"{name}.gate", torch.cat([x, output, attended])).sigmoid()
    s = apply_linear(w, f"{name}.source_proj", attended)
    t = apply_linear(w, f"{name}.target_proj", torch.cat([x, output]))
    mixed = {"source": t + z * s, "target": z * t + s, "both": (1 - z) * t + z * s}
    return mixed[gate_type].tanh()
