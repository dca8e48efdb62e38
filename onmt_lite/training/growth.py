"""A larger Transformer out of a trained one, that knows what the smaller one knows."""

from dataclasses import replace

import sentencepiece as spm
import torch
from torch import Tensor, nn

from onmt_lite.models.transformer import Transformer

OF_PIECES = (
    "src_embedding.token.weight",
    "tgt_embedding.token.weight",
    "output.weight",
    "output.bias",
)


def init_weights(model: Transformer) -> None:
    """Xavier for matrices; sublayers start as the identity: what they end with is zero."""
    for name, p in model.named_parameters():
        if name.endswith("token.weight"):
            nn.init.normal_(p, std=model.cfg.d_model**-0.5)
        elif name.endswith(("out.weight", "down.weight", "bias")):
            nn.init.zeros_(p)
        elif p.dim() == 2:
            nn.init.xavier_uniform_(p)


def with_layers(
    start: Transformer, enc_layers: int, dec_layers: int, dropout: float
) -> Transformer:
    """`start` with new layers on top, up to these numbers, that change nothing until they learn.

    A pre-norm layer whose last weights are zero is the identity (Net2Net, Chen et al. 2016);
    one with its norm behind is not: ValueError.
    """
    cfg = replace(
        start.cfg,
        enc_layers=max(enc_layers, start.cfg.enc_layers),
        dec_layers=max(dec_layers, start.cfg.dec_layers),
    )
    if not cfg.pre_norm and cfg != start.cfg:
        raise ValueError("layers can be put only on a model with norms before its sublayers")
    model = Transformer(cfg, dropout)
    init_weights(model)
    model.load_state_dict(model.state_dict() | start.state_dict())
    return model


def with_pieces(
    start: Transformer, old: spm.SentencePieceProcessor, new: spm.SentencePieceProcessor
) -> Transformer:
    """`start` for the pieces of `new`: what it has for those of `old`, and for each piece that is
    not among them the sum of its parts, over the root of their number so that it is as long.
    A byte, or what `old` cannot spell, begins near <unk>, at random: no two may stay the same."""
    n, unk = new.vocab_size(), old.unk_id()
    spelled = [[unk] if new.is_byte(i) else spell(new.id_to_piece(i), old) for i in range(n)]
    unlike = [i for i, ids in enumerate(spelled) if ids == [unk] and i != new.unk_id()]

    def rows(table: Tensor) -> Tensor:
        table = table.float()
        made = torch.stack([table[ids].sum(0) / len(ids) ** 0.5 for ids in spelled])
        if table.dim() == 2:
            made[unlike] += table.std(0) * torch.randn_like(made[unlike])
        return made

    weights = start.state_dict()
    model = Transformer(replace(start.cfg, src_vocab_size=n, tgt_vocab_size=n))
    model.load_state_dict(
        weights | {name: rows(weights[name]) for name in OF_PIECES if name in weights}
    )
    return model


def spell(piece: str, sp: spm.SentencePieceProcessor) -> list[int]:
    """Ids of the pieces of `sp` that spell `piece`: its own where it has one, else <unk>'s where
    nothing does."""
    unk = sp.unk_id()
    own = sp.piece_to_id(piece)
    if own != unk or piece == sp.id_to_piece(unk):
        return [own]
    parts = sp.encode(piece.replace("▁", " "), out_type=str)
    if parts and not piece.startswith("▁"):  # encoding takes any text for the start of a word
        parts[0] = parts[0].removeprefix("▁")
    return [i for i in map(sp.piece_to_id, parts) if i != unk] or [unk]


def rounding(model: Transformer) -> Transformer:
    """The model, its embeddings in the type of the products that follow under autocast: otherwise
    the sums of all sublayers stay float32, and each product copies its input."""

    def rounded(module: nn.Module, ids: object, embedded: Tensor) -> Tensor:
        kind = embedded.device.type
        low = torch.is_autocast_enabled(kind)
        return embedded.to(torch.get_autocast_dtype(kind)) if low else embedded

    for embedding in {model.src_embedding, model.tgt_embedding}:
        embedding.register_forward_hook(rounded)
    return model
