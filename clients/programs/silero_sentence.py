"""silero-vad's OnnxWrapper finds the speech in sentences that espeak-ng speaks, with pauses between them."""

import shutil
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
import torch
from silero_vad import get_speech_timestamps, load_silero_vad
from report import report, skip

if shutil.which("espeak-ng") is None:
    skip("espeak-ng is not installed")
RATE = 16000


def spoken(text: str) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spoken.wav"
        subprocess.run(["espeak-ng", "-v", "en", "-s", "140", "-w", str(path), text], check=True)
        with wave.open(str(path)) as f:
            rate, samples = f.getframerate(), np.frombuffer(f.readframes(f.getnframes()), np.int16) / 32768
    at = np.arange(0, len(samples), rate / RATE)
    return np.interp(at, np.arange(len(samples)), samples).astype(np.float32)


silence = np.zeros(RATE, np.float32)
SOUND = torch.from_numpy(
    np.concatenate(
        [
            silence,
            spoken("The water of the mountain turns the wheel."),
            silence,
            silence,
            spoken("It is the best of engines."),
            silence,
        ]
    )
)


def listen(model) -> dict:
    model.reset_states()
    chances = [model(SOUND[i : i + 512], RATE).item() for i in range(0, len(SOUND) - 512, 512)]
    return {
        "speech": get_speech_timestamps(SOUND, model, sampling_rate=RATE),
        "chances": chances,
        "at 8 kHz": get_speech_timestamps(SOUND[::2], model, sampling_rate=RATE // 2),
    }


report("silero-vad", lambda: load_silero_vad(onnx=True), listen)
