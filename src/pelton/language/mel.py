"""Log-mel spectrograms as Whisper reads them (Radford et al., arXiv 2212.04356, section 2.2), with the parameters of
openai-whisper's `audio.py` and of transformers' `WhisperFeatureExtractor`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

RATE = 16000  # samples a second
WINDOW, HOP = 400, 160  # samples: 25 ms every 10 ms
RANGE = 8.0  # powers of ten below the largest number, under which all are equal
FLOOR = 1e-10
BREAK, LOW, STEPS = 1000.0, 200 / 3, 27 / np.log(6.4)  # Slaney's scale: linear up to 1000 Hz, then logarithmic


def log_mel(samples: np.ndarray, mels: int, frames: int) -> np.ndarray:
    """Returns the log-mel spectrogram of a sound, f32 [mels, frames]. samples: f32, at most frames · HOP of them, at
    RATE; silence follows shorter ones."""
    padded = np.zeros(frames * HOP, np.float64)
    padded[: len(samples)] = samples
    padded = np.pad(padded, WINDOW // 2, mode="reflect")
    parts = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(parts * hann, axis=1)) ** 2
    x = np.log10(np.maximum(mel_filters(mels) @ power.T, FLOOR))
    return ((np.maximum(x, x.max() - RANGE) + 4) / 4).astype(np.float32)


@lru_cache(maxsize=4)
def mel_filters(mels: int) -> np.ndarray:
    """Returns triangles over the frequencies of a window, f64 [mels, WINDOW / 2 + 1], each with an area of 1 (Slaney,
    "Auditory Toolbox", 1998)."""
    top = BREAK / LOW + np.log(RATE / 2 / BREAK) * STEPS
    corners = _hertz(np.linspace(0, top, mels + 2))
    at = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    low, middle, high = (corners[i : i + mels, None] for i in range(3))
    triangles = np.maximum(0, np.minimum((at - low) / (middle - low), (high - at) / (high - middle)))
    return triangles * 2 / (high - low)


def _hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < BREAK / LOW, mel * LOW, BREAK * np.exp((mel - BREAK / LOW) / STEPS))
