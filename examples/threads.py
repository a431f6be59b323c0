"""Many threads share one engine: each has a context, its own memory; or a queue keeps some contexts busy.

pip install 'pelton[build]'
python examples/threads.py
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

import numpy as np
import pelton

DATA = Path(pelton.__file__).parent / "data"
engine = pelton.build(DATA / "resnet20_cifar10.onnx", shapes={"image": (1, 3, 32, 32)}, threads=1, level=0)
found = np.load(DATA / "cifar10_pictures.npz")
pictures = found["pictures"].transpose(0, 3, 1, 2)[:, None].astype(np.float32)  # [50, 1, 3, 32, 32]
own = local()


def classify(picture: np.ndarray) -> int:
    """In any thread. A context is of one thread at a time; weights and code are the engine's, and there once."""
    if not hasattr(own, "context"):
        own.context = engine.context(threads=1)
    return int(own.context.run({"image": picture})["logits"].argmax())


with ThreadPoolExecutor(4) as pool:
    by_threads = list(pool.map(classify, pictures))

# The same without threads of one's own: runs are started, and a callback hears of each that is over.
by_queue: dict[int, int] = {}


def note(run: pelton.AsyncRun, number: int) -> None:
    by_queue[number] = int(run.result()["logits"].argmax())


with pelton.AsyncQueue(engine, jobs=2) as queue:
    queue.set_callback(note)
    for i, picture in enumerate(pictures):
        queue.start_async({"image": picture}, i)  # waits while all jobs are busy
    queue.wait_all()

print(f"{sum(by_threads == found['classes'])} of {len(pictures)} right by threads")
print(f"the same by a queue: {[by_queue[i] for i in range(len(pictures))] == by_threads}")
