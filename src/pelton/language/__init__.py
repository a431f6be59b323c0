"""Language models: a folder or a file in, an engine with its tokens and its caches out."""

from .batch import TokenBatch
from .decoder import Decoder
from .description import Description, DecoderPorts
from .generation import Answer, GenerationRequest, Piece, TokenLogprob, Usage
from .model import LanguageModel
from .opening import open
from .sampling import Sampling
from .sequence import TokenSequence
from .tokens import Tokens, TokenStream

__all__ = [
    "Answer",
    "Decoder",
    "DecoderPorts",
    "Description",
    "GenerationRequest",
    "LanguageModel",
    "Piece",
    "Sampling",
    "TokenBatch",
    "TokenLogprob",
    "TokenSequence",
    "TokenStream",
    "Tokens",
    "Usage",
    "open",
]
