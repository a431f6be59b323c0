"""Language models: a folder or a file in, an engine with its tokens and its caches out."""

from .batch import TokenBatch
from .decoder import Decoder
from .encoder_opening import open_encoder
from .description import DecoderPorts, Description
from .generation import Answer, AnswerPiece, GenerationRequest, TokenLogprob, Usage
from .model import LanguageModel
from .opening import open
from .sampling import Sampling
from .scheduler import Scheduler
from .sentence import SentenceEncoder
from .sequence import TokenSequence
from .source_encoder import EncoderInput, SourceEncoder
from .tokens import Tokens, TokenStream

__all__ = [
    "Answer",
    "AnswerPiece",
    "Decoder",
    "DecoderPorts",
    "Description",
    "EncoderInput",
    "GenerationRequest",
    "LanguageModel",
    "Sampling",
    "Scheduler",
    "SentenceEncoder",
    "SourceEncoder",
    "TokenBatch",
    "TokenLogprob",
    "TokenSequence",
    "TokenStream",
    "Tokens",
    "Usage",
    "open",
    "open_encoder",
]
