"""Frequencies of rotations: the ways in which models stretch them for longer texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pelton.errors import ModelError

from .architecture import Rotation
from .source import LanguageSettings

KINDS = ("default", "linear", "llama3", "yarn", "longrope")
ALIASES = {"su": "longrope", "none": "default"}


def rotation(settings: LanguageSettings, pairs: int, context: int, theta: float = 10000.0) -> Rotation:
    """Returns the rotation that the settings of a model describe, of so many pairs of each head.

    Settings are `rope_parameters`, or `rope_scaling` and `rope_theta`. context: of the model. theta: default base.
    Raises ModelError for a kind that is not known, naming it.
    """
    values = settings.value("rope_parameters")
    scaling = settings.value("rope_scaling")
    given = next((v for v in (values, scaling) if isinstance(v, Mapping)), {})
    own = LanguageSettings(dict(given), settings.path)
    base = own.number("rope_theta", settings.number("rope_theta", theta))
    return scaled(own, base, pairs, context, settings.value("original_max_position_embeddings"))


def scaled(own: LanguageSettings, base: float, pairs: int, context: int, original: object = None) -> Rotation:
    """Returns the rotation of one set of parameters with a base. original: the context before it was stretched."""
    if base <= 1:
        raise ModelError(f"{own.path}: rope_theta must be above 1, got {base}")
    plain = Rotation(base ** -(np.arange(pairs) / pairs))
    kind = own.text("rope_type", own.text("type", "default"))
    kind = ALIASES.get(kind, kind)
    if kind == "default":
        made = plain
    elif kind == "linear":
        made = replace(plain, frequencies=plain.frequencies / own.number("factor"))
    elif kind == "llama3":
        made = _llama3(plain, own)
    elif kind == "yarn":
        made = _yarn(plain, own, base, context)
    elif kind == "longrope":
        first = own.value("original_max_position_embeddings") or original
        made = _longrope(plain, own, context, first if isinstance(first, int) else context)
    else:
        raise ModelError(f"{own.path}: rope_type {kind!r} is not supported, only {', '.join(KINDS)}")
    left = own.unknown({"partial_rotary_factor", "original_max_position_embeddings"})
    if left:
        raise ModelError(f"{own.path}: {left[0]!r} of rope_type {kind!r} is not supported")
    return made


def _llama3(plain: Rotation, own: LanguageSettings) -> Rotation:
    """Slow frequencies are divided by a factor, fast ones stay, those between are blended (Llama 3.1)."""
    factor, first = own.number("factor"), own.whole("original_max_position_embeddings")
    low, high = own.number("low_freq_factor"), own.number("high_freq_factor")
    if high <= low:
        raise ModelError(f"{own.path}: high_freq_factor must be above low_freq_factor, got {high} and {low}")
    waves = first * plain.frequencies / (2 * math.pi)  # in the original context
    share = np.clip((waves - low) / (high - low), 0, 1)
    return replace(plain, frequencies=plain.frequencies * (share + (1 - share) / factor))


def _yarn(plain: Rotation, own: LanguageSettings, base: float, context: int) -> Rotation:
    """Frequencies blended by the number of turns in the original context (YaRN, arXiv 2309.00071)."""
    factor, pairs = own.number("factor"), len(plain.frequencies)
    first = own.whole("original_max_position_embeddings", context)

    def pair_of(turns: float) -> float:
        return pairs * math.log(first / (turns * 2 * math.pi)) / math.log(base)

    low, high = pair_of(own.number("beta_fast", 32.0)), pair_of(own.number("beta_slow", 1.0))
    if own.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    share = np.clip((np.arange(pairs) - low) / max(high - low, 1e-3), 0, 1)
    factor_of_angles = own.number("attention_factor", 0.1 * math.log(factor) + 1 if factor > 1 else 1.0)
    return replace(plain, frequencies=plain.frequencies * (1 - share + share / factor), factor=factor_of_angles)


def _longrope(plain: Rotation, own: LanguageSettings, context: int, first: int) -> Rotation:
    """Frequencies divided by factors of their own, others for long texts (LongRoPE, arXiv 2402.13753)."""
    short, long = (own.numbers(f"{name}_factor", len(plain.frequencies)) for name in ("short", "long"))
    stretch = own.number("factor", context / first)
    factor = math.sqrt(1 + math.log(stretch) / math.log(first)) if stretch > 1 else 1.0
    factor = own.number("attention_factor", factor)
    return Rotation(plain.frequencies / short, factor, long=plain.frequencies / long, long_from=first)
