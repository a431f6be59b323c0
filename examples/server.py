"""A web server: requests wait for their answers without holding each other up; a queue keeps contexts busy.

pip install 'pelton[build]' fastapi uvicorn httpx
uvicorn --app-dir examples server:app      serves; then: curl --data-binary @pixels localhost:8000/classify
python examples/server.py                  asks itself, without a network
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pelton
from fastapi import FastAPI, HTTPException, Request

DATA = Path(pelton.__file__).parent / "data"
LABELS = (DATA / "cifar10.txt").read_text().split()
SIZE = 32 * 32 * 3  # bytes of a picture


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The engine is there before the first request, and its runs are over when the server is."""
    engine = pelton.build(DATA / "resnet20_cifar10.onnx", shapes={"image": (1, 3, 32, 32)}, threads=1, level=0)
    with pelton.AsyncQueue(engine) as app.state.queue:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/classify")
async def classify(request: Request) -> dict[str, str]:
    body = await request.body()
    if len(body) != SIZE:
        raise HTTPException(422, f"expected {SIZE} bytes, 32 x 32 pixels of RGB, got {len(body)}")
    pixels = np.frombuffer(body, np.uint8).reshape(1, 32, 32, 3).transpose(0, 3, 1, 2)
    outputs = await request.app.state.queue.run_async({"image": pixels.astype(np.float32)})
    return {"class": LABELS[outputs["logits"].argmax()]}


async def main() -> None:
    found = np.load(DATA / "cifar10_pictures.npz")
    bodies = [picture.tobytes() for picture in found["pictures"]]
    async with lifespan(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        start = time.monotonic()
        answers = await asyncio.gather(*(client.post("/classify", content=body) for body in bodies))
        wrong = await client.post("/classify", content=b"no picture")
    right = sum(a.json()["class"] == LABELS[c] for a, c in zip(answers, found["classes"]))
    print(f"{len(answers)} requests at once, answered in {(time.monotonic() - start) * 1e3:.0f} ms, {right} right")
    print(f"{wrong.status_code}: {wrong.json()['detail']}")


if __name__ == "__main__":
    asyncio.run(main())
