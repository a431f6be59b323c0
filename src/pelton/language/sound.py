"""Sounds: from arrays and WAV files to samples at the rate of a model, in parts."""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator
from math import gcd
from typing import Any

import numpy as np

from pelton.errors import InputAbsent, InputError

from .mel import RATE

ZEROS, ROLLOFF, BETA = 48, 0.95, 8.0  # of a resampling filter: zero crossings on each side, cutoff, Kaiser's window
LOWEST_RATE, HIGHEST_RATE = 1000, 768_000
CONVERT = "convert it, as with: ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le out.wav"
LATE, QUIET = 5 / 6, RATE // 10  # a long sound is cut behind this share of a part, where so many samples are quietest


def samples_of(audio: Any, rate: int | None = None) -> np.ndarray:
    """Returns samples at 16 kHz, f32 [samples].

    audio: a WAV file with 16 bits, or an array [samples] or [samples, channels] of floats from −1 to 1 or of int16.
    rate: of an array, samples a second, default 16,000; another one is resampled. Raises InputError for other types and
    shapes, numbers that are not finite, floats beyond ±100, which are no such samples, and files that it cannot read.
    """
    if isinstance(audio, (str, os.PathLike)):
        if rate is not None:
            raise InputError("rate is that of an array; a file has its own")
        audio, rate = _read_wave(os.fspath(audio))
    if not isinstance(audio, np.ndarray) or audio.dtype not in (np.int16, np.float32, np.float64):
        got = getattr(audio, "dtype", type(audio).__name__)
        raise InputError(f"audio is an array of int16, float32 or float64, or the path of a WAV file, got {got}")
    if audio.ndim not in (1, 2) or not audio.size:
        raise InputError(f"audio is an array [samples] or [samples, channels], got {list(audio.shape)}")
    if audio.ndim == 2 and audio.shape[1] > 64:
        raise InputError(f"audio of shape {list(audio.shape)} has {audio.shape[1]} channels: pass it transposed")
    rate = RATE if rate is None else rate
    if isinstance(rate, bool) or not isinstance(rate, int) or not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise InputError(f"rate is an integer from {LOWEST_RATE} to {HIGHEST_RATE} samples a second, got {rate!r}")
    x = audio.mean(1, dtype=np.float32) if audio.ndim == 2 else audio.astype(np.float32)
    x = x / np.float32(32768) if audio.dtype == np.int16 else x
    if not np.isfinite(x).all():
        raise InputError("audio has numbers that are not finite")
    if np.abs(x).max() > 100:
        raise InputError(f"audio of floats is from -1 to 1, got {np.abs(x).max():g}: divide it by its range")
    return resampled(x, rate, RATE)


def _read_wave(path: str) -> tuple[np.ndarray, int]:
    """Returns the samples of a WAV file, int16 [samples, channels], and their rate."""
    try:
        with wave.open(path, "rb") as file:
            if file.getsampwidth() != 2:
                raise InputError(f"{path!r} has samples of {8 * file.getsampwidth()} bits, expected 16: {CONVERT}")
            data, channels, rate = file.readframes(file.getnframes()), file.getnchannels(), file.getframerate()
    except FileNotFoundError:
        raise InputAbsent(f"there is no file {path!r}", path) from None
    except (wave.Error, EOFError, OSError, RuntimeError) as e:
        raise InputError(f"{path!r} cannot be read as WAV with 16 bits ({e}): {CONVERT}") from None
    whole = len(data) // (2 * channels)
    if not whole:
        raise InputError(f"{path!r} has no samples")
    return np.frombuffer(data, "<i2", whole * channels).astype(np.int16).reshape(whole, channels), rate


def resampled(x: np.ndarray, rate: int, to: int) -> np.ndarray:
    """Returns a sound at another rate. x: f32 [samples]. The filter is a windowed sinc (Smith and Gossett, "A flexible
    sampling-rate conversion method", ICASSP 1984)."""
    if rate == to:
        return x
    up, down = to // gcd(rate, to), rate // gcd(rate, to)
    cutoff = ROLLOFF * min(1.0, to / rate)  # of the input's Nyquist frequency
    half = int(np.ceil(ZEROS / cutoff))
    count = -(-len(x) * up // down)
    ends = half + down + 1
    rows = np.lib.stride_tricks.sliding_window_view(np.pad(x, (half, ends)), 2 * half + 1)
    out = np.empty(count, np.float32)
    for phase in range(min(up, count)):  # outputs phase, phase + up, …: of inputs that are `down` apart
        first, part = divmod(phase * down, up)
        distance = np.arange(-half, half + 1) - part / up
        window = np.i0(BETA * np.sqrt(np.maximum(0, 1 - (distance / half) ** 2))) / np.i0(BETA)
        taps = cutoff * np.sinc(cutoff * distance) * window
        of = len(range(phase, count, up))
        out[phase::up] = rows[first::down][:of] @ (taps / taps.sum()).astype(np.float32)
    return out


def parts_of(samples: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Yields a sound in parts of at most so many samples, cut where the end of a part is quietest."""
    begin = 0
    while len(samples) - begin > most:
        first = int(most * LATE)
        end = samples[begin + first : begin + most].astype(np.float64) ** 2
        window = min(QUIET, len(end))
        sums = np.concatenate([[0.0], end.cumsum()])
        quietest = int(np.argmin(sums[window:] - sums[:-window]))
        cut = begin + first + quietest + window // 2
        yield samples[begin:cut]
        begin = cut
    yield samples[begin:]
