"""Rules of speech of a folder: generation_config.json and preprocessor_config.json."""

from __future__ import annotations

from pathlib import Path

from pelton.errors import ModelError

from .folder_tokens import ids_of
from .mel import HOP, RATE, WINDOW
from .source import LanguageSettings, read_json
from .speech import SpeechRules


def speech_rules(folder: Path, settings: LanguageSettings, vocabulary: int) -> SpeechRules:
    """Reads generation_config.json and preprocessor_config.json of a folder; settings: of config.json.

    Raises ModelError for tokens beyond the vocabulary, and for spectrograms of other kinds.
    """
    path = folder / "generation_config.json"
    own = LanguageSettings(read_json(path) if path.is_file() else {}, path)
    languages = {name.strip("<|>"): id for name, id in _named(own, "lang_to_id", vocabulary).items()}
    tasks = _named(own, "task_to_id", vocabulary)
    forced = own.value("forced_decoder_ids") or settings.value("forced_decoder_ids") or []
    known = isinstance(forced, list) and all(isinstance(p, list) and len(p) == 2 for p in forced)
    if not known or [p[0] for p in forced] != list(range(1, len(forced) + 1)):
        raise ModelError(f"{path}: forced_decoder_ids must be pairs of 1, 2, … and a token, got {forced!r:.100}")
    begin = tuple(_checked(path, [token for _, token in forced if token is not None], "forced_decoder_ids", vocabulary))
    silent = _checked(path, ids_of(own.value("no_timestamps_token_id"))[:1], "no_timestamps_token_id", vocabulary)
    _check_features(folder / "preprocessor_config.json", settings)
    suppressed = (
        ids_of(own.value(name) if own.value(name) is not None else settings.value(name))
        for name in ("suppress_tokens", "begin_suppress_tokens")
    )
    suppress, first = (tuple(t for t in ids if 0 <= t < vocabulary) for ids in suppressed)
    return SpeechRules(languages, tasks, begin, silent[0] if silent else None, suppress, first)


def _named(settings: LanguageSettings, name: str, vocabulary: int) -> dict[str, int]:
    """Returns tokens by name."""
    value = settings.value(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"{settings.path}: {name} must be an object, got {value!r:.60}")
    return dict(zip(value, _checked(settings.path, [*value.values()], name, vocabulary)))


def _checked(path: Path, ids: list[int] | tuple[int, ...], name: str, vocabulary: int) -> list[int]:
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocabulary:
            raise ModelError(f"{path}: {name} must have tokens from 0 to {vocabulary - 1}, got {id!r:.60}")
    return [*ids]


def _check_features(path: Path, settings: LanguageSettings) -> None:
    """Raises ModelError if the model reads spectrograms that `log_mel` does not make."""
    if not path.is_file():
        return
    own = LanguageSettings(read_json(path), path)
    rows = settings.whole("max_source_positions", 1500)
    expected = dict(sampling_rate=RATE, n_fft=WINDOW, hop_length=HOP, feature_size=settings.whole("num_mel_bins", 80))
    for name, want in expected.items():
        value = own.whole(name, want)
        if value != want:
            raise ModelError(f"{path}: {name} must be {want}, got {value}")
    seconds = own.number("chunk_length", 30)
    if round(seconds * RATE) != 2 * rows * HOP:
        raise ModelError(f"{path}: chunk_length must be {2 * rows * HOP / RATE:g} seconds, got {seconds:g}")
