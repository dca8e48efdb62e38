"""Larger Transformers that begin with the weights of a trained one."""

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
    """Draw Xavier matrices; the last weights of each sublayer are zero: it is the identity."""
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
    """Put new layers on top of `start`, up to these numbers.

    The new layers are the identity until they learn (Net2Net, Chen et al. 2016): their last weights
    are zero.  Raises ValueError for a model with norms after its sublayers, where zero is not the
    identity.
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
    """Give `start` embeddings and output rows for the pieces of `new` instead of those of `old`.

    A piece of both keeps its row.  A piece that `old` spells with n others begins as the sum of
    their rows over the root of n, so that it is as long.  Any other piece begins near <unk>, at
    random: equal rows would stay equal.
    """
    n, unk = new.vocab_size(), old.unk_id()
    pieces = [new.id_to_piece(i) for i in range(n)]
    # The name of a byte, such as <0xE6>, is no text that could be spelled
    spelled = [
        [old.piece_to_id(piece)] if new.is_byte(i) else spell(piece, old)
        for i, piece in enumerate(pieces)
    ]
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
    """Ids of the pieces of `sp` that spell `piece`; the id of <unk> where no pieces do."""
    unk = sp.unk_id()
    same = sp.piece_to_id(piece)
    if same != unk or piece == sp.id_to_piece(unk):
        return [same]
    parts = sp.encode(piece.replace("▁", " "), out_type=str)
    if parts and not piece.startswith("▁"):  # encode puts one before any text
        parts[0] = parts[0].removeprefix("▁")
    return [i for i in map(sp.piece_to_id, parts) if i != unk] or [unk]


def rounding(model: Transformer) -> Transformer:
    """Make the embeddings of a model follow autocast, and return the model.

    Float32 embeddings would keep the sums of all sublayers in float32, and each matrix product
    would copy its input.
    """

    def rounded(module: nn.Module, ids: object, embedded: Tensor) -> Tensor:
        kind = embedded.device.type
        low = torch.is_autocast_enabled(kind)
        return embedded.to(torch.get_autocast_dtype(kind)) if low else embedded

    for embedding in {model.src_embedding, model.tgt_embedding}:
        embedding.register_forward_hook(rounded)
    return model
