"""Dynamic dimensions of inputs in files without dimension names, bounded as layers require."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pelton.errors import InputError, ModelError
from pelton.importers.imported import Range
from pelton.ir import dims
from pelton.ir.dims import Size, Symbol, Undecided
from pelton.ir.dims_text import parse
from pelton.ir.imported import OnSizes
from pelton.ir.size_constraints import MAX_ATTEMPTS, SizeConstraint, UndecidedNode, constrain, multiple
from pelton.network import Network


class InputSizes:
    """The dynamic dimensions of a network's inputs. settled: those with bounds, or a number, that layers required;
    free: those without given bounds."""

    def __init__(self, net: Network, settled: Mapping[str, SizeConstraint]):
        self.net, self.settled = net, settled
        self.free: dict[str, Symbol | None] = {}

    def dynamic(self, name: str, axis: int, given: Range | None) -> Size:
        """Returns a dynamic dimension; all inputs share that of the first axis, unless bounds differ."""
        text = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_")
        own = f"{text if text[:1].isalpha() else 'x' + text}_{axis}"
        for symbol in ("batch", own) if axis == 0 else (own,):
            known = self.net.declarations.sizes.get(symbol)
            if known is None:
                return self._size(symbol, given)
            bounds = [(s.minimum, s.optimum, s.maximum) for s in dims.symbols(known)]
            if given is None or [tuple(given)] == bounds:
                return known
        raise InputError(f"the dynamic dimensions of {name!r} have several bounds: {given}")

    def _size(self, symbol: str, given: Range | None, settled: Range | None = None) -> Size:
        """Returns the size of a name: within the caller's bounds, else within those that layers required."""
        asked, declared = None if given is not None else self.settled.get(symbol), self.net.declarations
        if asked is not None and isinstance(asked.size, int):
            return asked.size
        if asked is not None and isinstance(asked.size, str) and (equal := self._expression(asked.size)) is not None:
            declared.sizes[symbol] = equal
            return equal
        bounds = asked.size if asked is not None and isinstance(asked.size, Range) else given or settled
        if asked is not None and asked.step > 1:
            declared.sizes[symbol] = size = asked.step * self._size(multiple(symbol, asked.step), None, bounds)
            return size
        (size,) = declared.tensor_type([symbol if bounds is None else f"{symbol}={bounds}"]).shape
        if given is None:
            self.free |= {s.name: s for s in dims.symbols(size)}
        return size

    def _expression(self, text: str) -> Size | None:
        """Parses an expression of declared sizes; None if it has others."""
        try:
            return parse(text, self.net.declarations.sizes)
        except ValueError:
            return None


class UndecidedLayer(ModelError):
    """A layer requires unknown facts about dynamic dimensions. where: its place in messages."""

    def __init__(self, text: str, where: str, question: Undecided):
        super().__init__(text)
        self.where, self.question = where, question


def read_until_settled(name: str, read: Callable[[InputSizes], Network]) -> Network:
    """Returns the network that `read` builds from an empty one with the dimensions known so far. It is called again
    while UndecidedLayer can settle more of them."""
    settled = dict[str, SizeConstraint]()
    for attempt in range(MAX_ATTEMPTS + 1):
        sizes = InputSizes(Network(name), settled)
        try:
            net = read(sizes)
            break
        except UndecidedLayer as e:
            further = constrain([UndecidedNode(e.where, (), e.question)], sizes.free)
            if attempt == MAX_ATTEMPTS or not further:
                raise
            settled |= further
        except ModelError as e:
            assumed = [f"{name} = {s.size}" for name, s in settled.items() if s.given_up]
            if type(e) is not ModelError or not assumed:
                raise
            raise OnSizes(
                f"{e}; the dynamic dimension{'s' * (len(assumed) > 1)} {', '.join(assumed)} had to be assumed: set"
                " other sizes with shapes="
            ) from None
    for symbol, s in settled.items():
        if isinstance(s.size, int):
            net.warnings.append(f"dynamic dimension {symbol} had to be a number, {s.size}, for {s.why}")
    return net
