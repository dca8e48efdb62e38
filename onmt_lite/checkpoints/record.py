"""What every reader returns: a model and all that is needed to feed it text."""

from dataclasses import dataclass

from onmt_lite.models.base import EncoderDecoder
from onmt_lite.records import Confidence
from onmt_lite.text.tokenizers import Tokenizer
from onmt_lite.text.unknown import Unknown
from onmt_lite.text.vocab import Vocab


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model.

    start_id   what the decoder is fed first
    src_end    ids the model wants after each source line
    src_start  ids the model wants before each source line
    tgt_start, tgt_end  ids around each target line, before the end token
    never_ids  ids the model must not produce
    never_in_softmax  their logits mean nothing, so that CTranslate2 leaves them out of its softmax
    lower_capitals  a line in capitals is read in small letters, and its translation capitalised
    unknown    what becomes of characters that the model does not know
    confidence  how the score of a translation tells whether it is right, if that is known
    forced_eos  an output that reaches its limit ends there with the end token, at no cost, in the
                searches that do so (transformers' forced_eos_token_id)
    missing    files without which lines cannot become tokens as the model's own tokenizer does it
    toolkit    whose model it is
    version    of the toolkit or its format, as far as the files tell
    sums_to_one  the model returns logits, to be normalised; False: scores, which count as they are
    """

    model: EncoderDecoder
    src_vocab: Vocab
    tgt_vocab: Vocab
    tokenizers: dict[str, Tokenizer]  # by the name -tokenizer knows; the first is `auto`
    start_id: int
    src_end: tuple[int, ...] = ()
    never_ids: tuple[int, ...] = ()
    lower_capitals: bool = False
    unknown: Unknown = Unknown()
    confidence: Confidence | None = None
    forced_eos: bool = False
    toolkit: str = "onmt_lite"
    version: str = ""
    never_in_softmax: bool = False
    sums_to_one: bool = True
    src_start: tuple[int, ...] = ()
    tgt_start: tuple[int, ...] = ()
    tgt_end: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def copies(self) -> bool:
        """Whether the model is an `onmt_lite.models.base.CopyingModel`."""
        return getattr(self.model, "copies", False)

    @property
    def attends(self) -> bool:
        """Whether the attention that the model returns says anything."""
        return getattr(self.model, "attends", True)

    @property
    def aligns_late(self) -> bool:
        """Whether attention tells of the token before the one that is being made."""
        return getattr(self.model, "aligns_late", False)

    @property
    def eos_id(self) -> int:
        assert self.tgt_vocab.eos_id is not None
        return self.tgt_vocab.eos_id
