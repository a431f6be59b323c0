"""Language models: a folder or a file in, an engine with its tokens and its caches out."""

from .batch import TokenBatch
from .decoder import Decoder
from .description import Description, DecoderPorts
from .opening import open
from .sequence import TokenSequence
from .tokens import Tokens, TokenStream

__all__ = ["TokenBatch", "Decoder", "Description", "DecoderPorts", "TokenSequence", "TokenStream", "Tokens", "open"]
