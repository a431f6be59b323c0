"""ddddocr reads a captcha with both of its models, and finds the letters in a picture."""

import io
import logging

import ddddocr
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from report import report

logging.getLogger("ddddocr").setLevel(logging.ERROR)


def captcha(text: str) -> bytes:
    r = np.random.default_rng(7)
    image = Image.new("RGB", (160, 60), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(38)
    for i, letter in enumerate(text):
        draw.text(
            (14 + 34 * i, 4 + int(r.integers(0, 10))),
            letter,
            fill=tuple(int(c) for c in r.integers(0, 120, 3)),
            font=font,
        )
    for _ in range(4):
        draw.line([int(v) for v in r.integers(0, 160, 4) * (1, 60 / 160, 1, 60 / 160)], fill=(130, 130, 180))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def make() -> dict:
    return {
        "new": ddddocr.DdddOcr(beta=True, show_ad=False),
        "old": ddddocr.DdddOcr(show_ad=False),
        "boxes": ddddocr.DdddOcr(ocr=False, det=True, show_ad=False),
    }


def read(readers: dict) -> dict:
    return {
        "texts": [readers[kind].classification(captcha(text)) for kind in ("new", "old") for text in ("7K3P", "hx9d")],
        "boxes": readers["boxes"].detection(captcha("7K3P")),
    }


report("ddddocr", make, read)
