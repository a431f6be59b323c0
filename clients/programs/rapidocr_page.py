"""rapidocr reads a rendered page: where the lines are, what they say, how sure it is."""

from PIL import Image, ImageDraw, ImageFont
from rapidocr import RapidOCR
from report import report

import numpy as np

LINES = (
    "Pelton wheels turn water into power",
    "Invoice 2026-0417",
    "Total: 1,284.50 EUR",
    "Please pay within 30 days.",
    "Thank you!",
)


def page() -> np.ndarray:
    image = Image.new("RGB", (900, 520), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(36)
    for i, line in enumerate(LINES):
        draw.text((60, 50 + 85 * i), line, fill="black", font=font)
    return np.asarray(image)[:, :, ::-1]


def read(reader: RapidOCR) -> dict:
    found = reader(page())
    return {"lines": [*found.txts], "boxes": found.boxes, "scores": [*found.scores]}


report("rapidocr", lambda: RapidOCR(params={"Global.log_level": "error"}), read)
