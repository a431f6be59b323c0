"""Who is speaking when: silero-vad on a sound that comes in pieces of 32 ms, its state kept from piece to piece.

    pip install 'pelton[build]' soundfile && pip install --no-deps silero-vad pyannote.audio
    python examples/speech.py [sound.wav]

silero-vad brings the network, pyannote.audio a conversation of the AMI corpus.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pelton
import soundfile

RATE, PIECE, CONTEXT = 16000, 512, 64  # Hz; samples of a piece, and of what is before it


def folder(package: str) -> Path:
    """Where a package is, without importing it."""
    spec = importlib.util.find_spec(package)
    return Path((spec and spec.submodule_search_locations or [""])[0])


class Listener:
    """Hears one sound, piece by piece. Many of them may share an engine."""

    def __init__(self, engine: pelton.Engine):
        self.context = engine.context(threads=1)
        self.state = np.zeros((2, 1, 128), np.float32)
        self.before = np.zeros((1, CONTEXT), np.float32)

    def speaks(self, piece: np.ndarray) -> float:
        """How likely it is that somebody speaks in the next PIECE samples."""
        heard = np.concatenate([self.before, piece[None]], 1)
        found = self.context.run({"input": heard, "state": self.state, "sr": np.array(RATE)})
        self.state, self.before = found["stateN"], heard[:, -CONTEXT:]
        return float(found["output"][0, 0])


def speech(chances: list[float]) -> Iterator[tuple[float, float]]:
    """(begin, end) in seconds; it begins above 0.5 and ends after 0.3 s below 0.35, as silero's own program has it."""
    begin = end = -1
    for i, chance in enumerate([*chances, *[0.0] * 11]):
        end = i if chance > 0.35 else end
        if begin < 0 and chance > 0.5:
            begin = i
        elif begin >= 0 and i - end > 10:
            yield begin * PIECE / RATE, (end + 1) * PIECE / RATE
            begin = -1


engine = pelton.build(folder("silero_vad") / "data/silero_vad_16k_op15.onnx", threads=1, level=0)
path = sys.argv[1] if len(sys.argv) > 1 else folder("pyannote") / "audio/sample/sample.wav"
listener, pieces = Listener(engine), soundfile.blocks(path, PIECE, dtype="float32", fill_value=0)
for begin, end in speech([listener.speaks(piece) for piece in pieces]):
    print(f"{begin:5.1f} s to {end:5.1f} s")
