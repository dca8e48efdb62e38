"""Random Transformers saved by CTranslate2: n-best lists and scores equal CTranslate2."""

import pytest

ctranslate2 = pytest.importorskip("ctranslate2")
np = pytest.importorskip("numpy")

from ctranslate2.specs import common_spec, transformer_spec  # noqa: E402

from onmt_lite import Translator  # noqa: E402

D, HEADS, FF, ROWS, POSITIONS = 16, 4, 24, 24, 300
ATOL = 5e-5
LINES = ["w1 w2 w3", "w7", "w4 w4 w9 w10 w11 w2 w0", "w13 w5 zzz w8 w12", "w3 w2 w1 w0 w1 w2 w3 w4"]
TARGETS = ["w1 w2", "w9 w8 w7", "w0 w0 w0", "w5", "w6 w7"]
Activation = common_spec.Activation
# CTranslate2 search options, and our equivalents
GRID = [
    (dict(beam_size=1), dict(beam_size=1)),
    (dict(beam_size=2, num_hypotheses=2), dict(beam_size=2, n_best=2)),
    (
        dict(beam_size=5, num_hypotheses=5, length_penalty=0),
        dict(beam_size=5, n_best=5, alpha=0.0),
    ),
    (
        dict(beam_size=4, num_hypotheses=4, min_decoding_length=4, no_repeat_ngram_size=2),
        dict(beam_size=4, n_best=4, min_length=4, block_ngram_repeat=2),
    ),
    (
        dict(beam_size=3, num_hypotheses=3, coverage_penalty=0.3, patience=2),
        dict(beam_size=3, n_best=3, coverage_penalty="wu", beta=0.3, patience=2.0),
    ),
    (
        dict(beam_size=3, num_hypotheses=3, repetition_penalty=1.3, disable_unk=True),
        dict(beam_size=3, n_best=3, repetition_penalty=1.3, ban_unk_token=True),
    ),
]


class RandomWeights:
    """Fills a model specification with random weights."""

    def __init__(self, seed, kv=HEADS, width=D // HEADS, bias=True, has_relative_values=False):
        self.random, self.kv, self.width = np.random.default_rng(seed), kv, width
        self.bias, self.has_relative_values = bias, has_relative_values

    def sample(self, *shape, scale=0.35):
        return (self.random.standard_normal(shape) * scale).astype(np.float32)

    def fill_linear(self, spec, rows, columns):
        spec.weight = self.sample(rows, columns, scale=1.3 * columns**-0.5)
        if self.bias:
            spec.bias = self.sample(rows, scale=0.1)

    def fill_norm(self, spec):
        spec.gamma = 1 + self.sample(D, scale=0.2)
        if hasattr(spec, "beta"):
            spec.beta = self.sample(D, scale=0.1)

    def fill_attention(self, spec, sizes):
        for linear, rows in zip(spec.linear, sizes):
            self.fill_linear(linear, rows * self.width, D)
        self.fill_linear(spec.linear[-1], D, HEADS * self.width)
        self.fill_norm(spec.layer_norm)
        if hasattr(spec, "relative_position_keys"):
            keys = spec.relative_position_keys = self.sample(7, self.width)
            values = self.sample(7, self.width) if self.has_relative_values else keys
            spec.relative_position_values = values
        if hasattr(spec, "relative_attention_bias"):
            spec.relative_attention_bias = self.sample(8, HEADS, scale=1)
            spec.relative_attention_max_distance = np.int32(16)

    def fill(self, spec, tied=True, positions=True):
        table = self.sample(ROWS, D, scale=0.5)
        for side in (spec.encoder, spec.decoder):
            embedding = side.embeddings
            embedding = embedding[0] if isinstance(embedding, list) else embedding
            embedding.weight = table if tied else self.sample(ROWS, D, scale=0.5)
            if hasattr(side, "position_encodings") and positions:
                side.position_encodings.encodings = self.sample(POSITIONS, D)
            for name in ("layer_norm", "layernorm_embedding"):
                if hasattr(side, name):
                    self.fill_norm(getattr(side, name))
            for layer in side.layer:
                self.fill_attention(layer.self_attention, [HEADS + 2 * self.kv])
                if hasattr(layer, "attention"):
                    self.fill_attention(layer.attention, [HEADS, 2 * self.kv])
                self.fill_linear(layer.ffn.linear_0, FF, D)
                self.fill_linear(layer.ffn.linear_1, D, FF)
                if hasattr(layer.ffn, "linear_0_noact"):
                    self.fill_linear(layer.ffn.linear_0_noact, FF, D)
                self.fill_norm(layer.ffn.layer_norm)
        spec.decoder.projection.weight = table if tied else self.sample(ROWS, D)
        spec.decoder.projection.bias = self.sample(ROWS)


def set_in_decoder(**values):
    """Return a function that sets attributes of the decoder."""

    def edit(spec):
        for name, value in values.items():
            setattr(spec.decoder, name, value)

    return edit


def set_in_both(**values):
    """Return a function that sets attributes of encoder and decoder."""

    def edit(spec):
        for name, value in values.items():
            setattr(spec.encoder, name, value)
            setattr(spec.decoder, name, value)

    return edit


def scale_queries(spec):
    for layer in (*spec.encoder.layer, *spec.decoder.layer):
        layer.self_attention.queries_scale = 0.8
        if hasattr(layer, "attention"):
            layer.attention.queries_scale = 1.0


# Arguments of the specification, of RandomWeights and of its method fill, and a final edit
CASES = {
    "plain": {},
    "post_norm": dict(spec=dict(pre_norm=False)),
    **{a.name: dict(spec=dict(activation=a)) for a in Activation if a != Activation.Sigmoid},
    "shaw": dict(spec=dict(with_relative_position=True)),
    "shaw_values": dict(
        spec=dict(with_relative_position=True), weights=dict(has_relative_values=True)
    ),
    "buckets": dict(spec=dict(relative_attention_bias=True)),
    "gated_rms": dict(spec=dict(ffn_glu=True, rms_norm=True)),
    "multi_query": dict(spec=dict(multi_query_attention=True), weights=dict(kv=1)),
    "t5": dict(
        spec=dict(relative_attention_bias=True, rms_norm=True, ffn_glu=True),
        weights=dict(bias=False),
        edit=set_in_both(scale_embeddings=False),
    ),
    "embedding_norm": dict(spec=dict(layernorm_embedding=True)),
    "no_final_norm": dict(spec=dict(no_final_norm=True)),
    "computed_positions": dict(fill=dict(positions=False)),
    "scale_embeddings": dict(edit=set_in_both(scale_embeddings=3.0)),
    "untied": dict(fill=dict(tied=False)),
    "uneven_depth": dict(layers=(3, 1)),
    "zero_start": dict(edit=set_in_decoder(start_from_zero_embedding=True)),
    "zero_start_untied": dict(
        edit=set_in_decoder(start_from_zero_embedding=True), fill=dict(tied=False)
    ),
    "scale_outputs": dict(edit=set_in_decoder(scale_outputs=0.25)),
    "scale_outputs_post": dict(edit=set_in_decoder(scale_outputs=0.25), spec=dict(pre_norm=False)),
    "queries_scale": dict(edit=scale_queries),
    "first_layer_aligns": dict(edit=set_in_decoder(alignment_layer=np.int16(0))),
    "three_heads_align": dict(edit=set_in_decoder(alignment_heads=np.int16(3))),
    "all_heads_align": dict(edit=set_in_decoder(alignment_heads=np.int16(0))),
    "epsilon": dict(config=dict(layer_norm_epsilon=0.01)),
    "source_end": dict(config=dict(add_source_eos=True)),
    "source_start": dict(config=dict(add_source_bos=True, add_source_eos=True)),
    "decoder_start": dict(config=dict(decoder_start_token="</s>")),
    **{
        name: dict(quantization=name)
        for name in ("int8", "int16", "float16", "bfloat16", "int8_float16", "int8_bfloat16")
    },
}


def save_model(path, spec, config=None, quantization=None, words=None):
    path.mkdir(exist_ok=True)
    words = words or ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(ROWS - 3))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    for name, value in (config or {}).items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(path))


def assert_equals_ctranslate2(path, converted=None, lines=LINES):
    reference = ctranslate2.Translator(
        str(converted or path), compute_type="float32", intra_threads=1
    )
    translator = Translator.from_pretrained(
        path, device="cpu", precision="fp32", tokenizer="space", search="ctranslate2", threads=1
    )
    tokens = [line.split() for line in lines]
    for settings, options in GRID:
        expected = (
            reference.translate_batch(  # one line each, because coverage depends on the batch
                tokens, return_scores=True, max_batch_size=1, max_decoding_length=20, **settings
            )
        )
        translations = translator.translate(lines, max_length=20, **options)
        for e, f in zip(expected, translations, strict=True):
            assert [h.tokens for h in f.hyps] == e.hypotheses
            assert [h.score for h in f.hyps] == pytest.approx(e.scores, abs=ATOL)
    scores = reference.score_batch(tokens, [target.split() for target in TARGETS])
    actual = translator.score(lines, TARGETS)
    assert actual == pytest.approx([sum(s.log_probs) for s in scores], abs=ATOL)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_n_best_and_scores_equal_ctranslate2(case, tmp_path):
    spec = transformer_spec.TransformerSpec.from_config(
        case.get("layers", (2, 2)), HEADS, **case.get("spec", {})
    )
    RandomWeights(1, **case.get("weights", {})).fill(spec, **case.get("fill", {}))
    case.get("edit", lambda spec: None)(spec)
    save_model(tmp_path, spec, case.get("config"), case.get("quantization"))
    assert_equals_ctranslate2(tmp_path)


@pytest.mark.parametrize(
    "rotary",
    [dict(rotary_dim=0), dict(rotary_dim=2, rotary_interleave=False, rotary_base=100.0)],
    ids=str,
)
def test_rotary_positions_equal_ctranslate2(rotary, tmp_path):
    encoder = transformer_spec.TransformerEncoderSpec(2, HEADS, **rotary)
    delattr(encoder, "position_encodings")
    spec = transformer_spec.TransformerSpec(
        encoder, transformer_spec.TransformerDecoderSpec(2, HEADS, **rotary)
    )
    RandomWeights(2).fill(spec)
    save_model(tmp_path, spec)
    assert_equals_ctranslate2(tmp_path)


def test_load_alibi_is_rejected(tmp_path):
    from onmt_lite.errors import CheckpointError

    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(1, HEADS),
        transformer_spec.TransformerDecoderSpec(1, HEADS, alibi=True),
    )
    RandomWeights(3).fill(spec)
    save_model(tmp_path, spec)
    with pytest.raises(CheckpointError, match="alibi"):
        Translator.from_pretrained(tmp_path)


def test_target_language_equals_ctranslate2_target_prefix(tmp_path):
    """The prefix has no cost. EOS directly after it only counts as the best candidate."""
    words = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(ROWS - 7))]
    words += ["deu_Latn", "eng_Latn", "fra_Latn"]
    for seed in range(4):
        spec = transformer_spec.TransformerSpec.from_config((1, 1), HEADS)
        RandomWeights(seed).fill(spec)
        spec.decoder.projection.bias[2] += 1.5  # ends early
        save_model(tmp_path / str(seed), spec, dict(decoder_start_token="</s>"), words=words)
        reference = ctranslate2.Translator(
            str(tmp_path / str(seed)), compute_type="float32", intra_threads=1
        )
        translator = Translator.from_pretrained(
            tmp_path / str(seed),
            **dict(device="cpu", precision="fp32", tokenizer="space", search="ctranslate2"),
            **dict(src_lang="deu_Latn", tgt_lang="eng_Latn", threads=1),
        )
        tokens = [["deu_Latn", *line.split(), "</s>"] for line in LINES]
        for settings, options in GRID:
            expected = reference.translate_batch(
                tokens,
                target_prefix=[["eng_Latn"]] * len(LINES),
                **dict(return_scores=True, max_batch_size=1, max_decoding_length=12),
                **settings,
            )
            translations = translator.translate(LINES, max_length=12, **options)
            for e, f in zip(expected, translations, strict=True):
                assert [h.tokens for h in f.hyps] == [tokens[1:] for tokens in e.hypotheses]
                assert [h.score for h in f.hyps] == pytest.approx(e.scores, abs=ATOL)


@pytest.mark.parametrize("name", ["opus", "student"])
def test_marian_files_equal_ctranslate2_conversion(name, tmp_path):
    from tests.unit.checkpoints.test_marian import NPZ

    converter = ctranslate2.converters.OpusMTConverter(str(NPZ / name))
    converter.convert(str(tmp_path / "ct2"), quantization="int8" if name == "opus" else None)
    assert_equals_ctranslate2(tmp_path / "ct2")
    if name == "student":
        assert_equals_ctranslate2(NPZ / name, tmp_path / "ct2")
