"""The backend of `torch.compile`: selects graphs for engines, and logs why others run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext, tracing
from torch.utils._python_dispatch import _disable_current_modes

from pelton.logs import Logger
from pelton.errors import Cancelled, InputError
from pelton.options import Options

from .compiled import CompiledGraph
from .frozen import Unsupported, freeze

log = Logger("pelton.torch")
ENCODER = "aten._transformer_encoder_layer_fwd"  # torch's node for a whole nn.TransformerEncoderLayer


def compile_graph(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of torch's dynamo; `torch.compile(model, backend="pelton", options={…})` calls it.

    options: fields of `pelton.Options` by name, such as {"level": 0}; "threads" is torch.get_num_threads() by default.
    mode: rejected; use `level` to bound the search of a build.

    Graphs that need gradients, are not on the CPU, or cannot be expressed run eagerly, with a log message. Parameters
    and buffers are constants of the engine. In-place changes that torch counts (optimizers, load_state_dict) cause a
    rebuild; changes through `.data` are invisible to torch and need torch._dynamo.reset(). Raises InputError for
    invalid options.
    """
    if mode is not None:
        raise InputError(f"backend 'pelton' has no modes, got mode={mode!r}; use options={{'level': 0 to 5}}")
    settings = Options().but(**(options or {}))
    if not settings.on_cpu:
        raise InputError(f"backend 'pelton' runs engines on the CPU, got target={settings.target!r}; leave it out")
    settings = settings.but(threads=settings.threads or torch.get_num_threads())
    reason = _reason_against(example_inputs)
    if reason is not None:
        log.warning("a graph of %d nodes runs eagerly: %s", len(module.graph.nodes), reason)
        return module.forward
    # in the order of the arguments of the inner graph
    tensors = [*module.parameters(), *module.buffers(), *example_inputs]
    static = [_is_constant(tensor) for tensor in tensors]

    def compile_inference(inner: torch.fx.GraphModule, fakes: Sequence[Any]) -> Callable[[list[Any]], Any]:
        changed = TracingContext.get().fw_metadata.mutated_inp_runtime_indices
        constants = [i for i, is_static in enumerate(static) if is_static and i not in changed]
        try:
            if len(fakes) != len(static):  # AOT autograd has merged arguments that are views of each other
                constants = []
            with _disable_current_modes(), tracing(None):  # dynamo's fake tensors are not for exports and builds
                return CompiledGraph(inner, freeze(inner, fakes, constants), settings, tensors)
        except Cancelled:
            raise
        except Exception as e:
            _report(inner, e)
            return _eager(inner)

    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=lambda inner, fakes: _eager(inner), inference_compiler=compile_inference
    )(module, example_inputs)
    return compiled


def _reason_against(example_inputs: Sequence[Any]) -> str | None:
    """Explains why a graph of these inputs cannot become an engine; None if there is no objection."""
    tensors = [t for t in example_inputs if isinstance(t, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return "it needs gradients; call it under torch.no_grad() or inference_mode()"
    elsewhere = {str(t.device) for t in tensors if t.device.type != "cpu"}
    if elsewhere:
        return f"it has tensors on {', '.join(sorted(elsewhere))}, and engines of this backend run on the CPU"
    special = next((t for t in tensors if t.layout != torch.strided or t.is_neg() or t.is_conj()), None)
    return None if special is None else f"it has tensors of another layout ({special.layout}), or not yet negated"


def _is_constant(given: Any) -> bool:
    """True if an argument of a graph is a parameter or a buffer whose changes torch counts."""
    known = isinstance(given, torch.nn.Parameter) or getattr(given, "_dynamo_static_input_type", None) is not None
    return known and not given.is_inference()


def _report(inner: torch.fx.GraphModule, e: Exception) -> None:
    reason = str(e) if isinstance(e, (Unsupported, RuntimeError)) else f"{type(e).__name__}: {e}"
    if ENCODER in reason:
        reason += "; torch.backends.mha.set_fastpath_enabled(False) before the first call makes several operators of it"
    log.warning("a graph of %d nodes runs eagerly: %s", len(inner.graph.nodes), reason)
    log.debug("the whole error", exc_info=e)


def _eager(inner: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    def run(args: list[Any]) -> Any:
        return inner.forward(*args)

    run._boxed_call = True  # type: ignore[attr-defined]  # it takes its arguments in a list
    return run
