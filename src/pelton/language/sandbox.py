"""The environment of chat templates: Jinja's immutable sandbox with bounds on texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .template_limits import bounded, check_operation, check_sizes, checked, joined, to_json


class GenerationBlock(Extension):
    """`{% generation %}` … `{% endgeneration %}`, with which templates mark the answers: its text alone counts."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """A sandbox that checks the sizes of texts before operators, filters and methods make them."""

    concat = staticmethod(joined)
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        check_sizes(obj, args, kwargs)
        return checked(super().call(context, obj, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for joint in [*tree.find_all(nodes.Concat)]:  # a ~ b is not intercepted, + is
            texts = [nodes.Filter(n, "string", [], [], None, None) for n in joint.nodes]
            whole: nodes.Expr = texts[0]
            for text in texts[1:]:
                whole = nodes.Add(whole, text)
            joint.nodes = [whole]
        tree.set_environment(self)
        return tree


def environment(functions: Mapping[str, Callable[..., Any]]) -> BoundedSandbox:
    """Returns an environment with these functions."""
    out = BoundedSandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        extensions=[GenerationBlock, loopcontrols],
        finalize=checked,
    )
    out.filters.update({name: bounded(f) for name, f in out.filters.items()})
    out.filters["tojson"] = bounded(to_json)
    out.globals.pop("lipsum", None)
    out.globals.update(functions)
    return out
