from dataclasses import dataclass, field


@dataclass
class TrainOptions:
    train: str
    valid: str
    output: str
    reverse: bool = False
    vocab_size: int = 5000
    d_model: int = 256
    heads: int = 4
    d_ff: int = 1024
    enc_layers: int = 4
    dec_layers: int = 2
    max_positions: int = 512
    dropout: float = 0.1
    label_smoothing: float = 0.1
    matrix_lr: float = 0.02
    vector_lr: float = 0.002
    warmup_steps: int = 100
    cooldown: float = 0.7
    clip_norm: float = 1.0
    batch_tokens: int = 3000
    train_steps: int = 0
    train_minutes: float = 0
    valid_minutes: float = 5
    src_sampling: float = 0.2
    tgt_sampling: float = 0.0
    augment_join: float = 0.07
    augment_conjunction: float = 0.35
    augment_quote: float = 0.01
    augment_no_final: float = 0.06
    augment_upper: float = 0.015
    augment_lower_src: float = 0.02
    augment_numbers: float = 2
    conjunctions: list = field(default_factory=list)
    quotes: list = field(default_factory=list)
    bf16: bool = False
    device: str = "cpu"
    threads: int = 2
    seed: int = 1

    def rates(self):
        return {k[8:]: v for k, v in vars(self).items() if k.startswith("augment_")}

    def conjunction_pairs(self):
        return [tuple(x.split("|")) for x in self.conjunctions]

    def quote_pairs(self):
        return [tuple(tuple(s.split("…")) for s in x.split("|")) for x in self.quotes]
