"""Dynamic dimensions of inputs in files that do not name them, and how what layers ask of them is settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pelton.errors import InputError, ModelError
from pelton.importers.imported import Range
from pelton.ir import dims
from pelton.ir.dims import Size, Symbol, Undecided
from pelton.ir.size_constraints import MAX_ATTEMPTS, SizeConstraint, UndecidedNode, constrain
from pelton.network import Network


class InputSizes:
    """The dynamic dimensions of a network's inputs. settled: those of which layers have asked for bounds, or a number;
    free: those whose bounds nobody has given."""

    def __init__(self, net: Network, settled: Mapping[str, SizeConstraint]):
        self.net, self.settled = net, settled
        self.free: dict[str, Symbol | None] = {}

    def dynamic(self, name: str, axis: int, given: Range | None) -> Size:
        """A dynamic dimension; that of the first axis is the same for all inputs, unless bounds differ."""
        text = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_")
        own = f"{text if text[:1].isalpha() else 'x' + text}_{axis}"
        declared, bounds = self.net.declarations, given
        for symbol in ("batch", own) if axis == 0 else (own,):
            known, asked = declared.sizes.get(symbol), self.settled.get(symbol)
            if asked is not None and bounds is None:
                if isinstance(asked.size, int):
                    return asked.size
                bounds = asked.size if isinstance(asked.size, Range) else None
            if known is None:
                size = declared.tensor_type([symbol if bounds is None else f"{symbol}={bounds}"]).shape[0]
                if given is None:
                    self.free |= {s.name: s for s in dims.symbols(size)}
                return size
            (s,) = dims.symbols(known)
            if bounds is None or bounds == (s.minimum, s.optimum, s.maximum):
                return known
        raise InputError(f"the dynamic dimensions of {name!r} have several bounds: {bounds}")


class UndecidedLayer(ModelError):
    """A layer asks for more about dynamic dimensions than is known. where: its place in messages."""

    def __init__(self, text: str, where: str, question: Undecided):
        super().__init__(text)
        self.where, self.question = where, question


def read_until_settled(name: str, read: Callable[[InputSizes], Network]) -> Network:
    """The network that `read` makes of an empty one with the dimensions known so far. It is called again as long as
    UndecidedLayer tells how to settle more of them."""
    settled = dict[str, SizeConstraint]()
    for attempt in range(MAX_ATTEMPTS + 1):
        sizes = InputSizes(Network(name), settled)
        try:
            net = read(sizes)
            break
        except UndecidedLayer as e:
            further = constrain([UndecidedNode(e.where, (), e.question)], sizes.free)
            last = attempt == MAX_ATTEMPTS or not further
            if last or any(isinstance(s.size, str) for s in further.values()):
                raise
            settled |= further
    for symbol, s in settled.items():
        if isinstance(s.size, int):
            net.warnings.append(f"dynamic dimension {symbol} had to be a number, {s.size}, for {s.why}")
    return net
