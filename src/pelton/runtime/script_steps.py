"""The steps of a script outside its engines, as users see them."""

from __future__ import annotations

from pelton.engine.plan import Step
from pelton.engine.script import Action, Block, HostAction, RunAction, blocks_in


def between(block: Block) -> list[Action]:
    """Returns the steps that run no engine, outer ones first, without the fallbacks for sizes that an engine
    rejects."""
    actions: list[Action] = []
    for action in block.steps:
        if not isinstance(action, RunAction):
            actions.append(action)
            for inner in blocks_in(action):
                actions += between(inner)
    return actions


def step_of(action: Action) -> Step:
    """Returns the step of a script in the form of an engine's step."""
    kind = action.name if isinstance(action, HostAction) else f"{_kind(action)} → {', '.join(action.outputs)}"
    return Step(
        kind,
        "",
        tiles=0,
        host=action.call if isinstance(action, HostAction) else _kind(action).lower(),
        info={"name": kind, "op": _kind(action).lower(), "tactic": "script", "layers": [kind]},
    )


def _kind(action: Action) -> str:
    """Returns the name of a script's step for users: "Run", "If", "Loop" or "Scan"."""
    return type(action).__name__.removesuffix("Action")
