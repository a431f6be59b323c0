"""Signatures of engine files, Ed25519 (RFC 8032) over the whole file.

    section "signatures", the last of the file: 8 slots of 96 bytes, each the public key (32) and the signature (64) of
    a signer, or zeros; then the SHA-256 of all slots (32)

The signed message is CONTEXT and the SHA-256 of the file with zeros in place of that section: several may sign it.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import EngineError, InputAbsent, InputError, Needs
from pelton.system.memory import allocate

from .container import AGAIN, SIGNATURES, Container, frame, map_file, open_container, write_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY, SLOT, MOST = 32, 96, 8  # bytes of a public key and of a slot; slots
SLOTS = SLOT * MOST
ROOM = SLOTS + hashlib.sha256().digest_size
EMPTY = {SIGNATURES: bytes(ROOM)}  # the section before it is filled
CONTEXT = b"pelton engine signature 1\0"
# RFC 8410: the bytes before the 32 bytes of a public key in its DER form; fingerprints are the hash of that form
SPKI = bytes.fromhex("302a300506032b6570032100")
MAKE = "`openssl genpkey -algorithm ed25519 -out key.pem` makes one"
MAKE_PUBLIC = "`openssl pkey -in key.pem -pubout -out key.pub` writes the public key of a private one"
LARGEST_KEY = 1 << 16  # maximum bytes of a key file


def fingerprint(public: bytes) -> str:
    """Returns the fingerprint of a public key of 32 bytes: SHA256:… in base64, of its DER form."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(SPKI + public).digest()).decode().rstrip("=")


# ---- signing ----


def signed(pieces: Iterable[Any], keys: Sequence[Ed25519PrivateKey], kept: bytes = b"") -> Iterator[Any]:
    """Yields the pieces of a file, with signatures of the keys in the last one, the empty section of signatures. kept:
    slots of the same file that were filled before."""
    digest, last = hashlib.sha256(), None
    for piece in pieces:
        if last is not None:
            digest.update(last)
            yield last
        last = piece
    digest.update(bytes(ROOM))
    slots = kept + b"".join(_raw(key.public_key()) + key.sign(CONTEXT + digest.digest()) for key in keys)
    slots += bytes(SLOTS - len(slots))
    yield slots + hashlib.sha256(slots).digest()


def sign_file(source: str | os.PathLike[str], key: Any, target: str | os.PathLike[str] | None = None) -> None:
    """Adds a signature to an engine file, in place or as another file, atomically; the file is verified before.

    key: as in `Engine.save`. Raises EngineError for data that is no engine, is altered, or has eight signatures;
    InputError for an invalid key.
    """
    own = private_key(key)
    data, where = map_file(source)
    container = open_container(data, where)
    sections = container.sections(sorted(container.rows, key=lambda name: container.rows[name].offset))
    container.verify({name: section for name, section in sections.items() if name != SIGNATURES}, where)
    slots, public = [], _raw(own.public_key())
    if SIGNATURES in sections:
        slots = [slot for slot in _slots(container, data) if slot[:KEY] != public]
        _verify(slots, data, where)
    if len(slots) == MOST:
        raise EngineError(f"{where} already has {MOST} signatures, the maximum")
    contents = {**{name: section for name, section in sections.items() if name != SIGNATURES}, **EMPTY}
    write_file(signed(frame(contents), [own], b"".join(slots)), target or source)


# ---- verifying ----


def check(data: memoryview, found: Container, trust: Any, where: str) -> None:
    """Raises EngineError unless one of the keys signed the file, and it was not altered since."""
    keys = [trust] if isinstance(trust, (str, bytes, os.PathLike)) or not isinstance(trust, Iterable) else list(trust)
    if not keys:
        raise InputError("trust= has no public key; pass at least one, or leave it out to load any engine")
    trusted = [_raw(public_key(key)) for key in keys]
    slots = _slots(found, data)
    if not slots:
        raise EngineError(
            f"{where} is not signed, and trust= asks for a signature of {_listed(trusted)}; sign it with"
            " `pelton sign`, or load it without trust="
        )
    _verify(slots, data, where)
    signers = [slot[:KEY] for slot in slots]
    if not set(signers) & set(trusted):
        raise EngineError(
            f"{where} is signed by {_listed(signers)}, and trust= has {_listed(trusted)}; add the public key of the"
            " signer if you trust it"
        )


def signers(source: str | os.PathLike[str]) -> tuple[str, ...]:
    """Returns the fingerprints of the claimed signers of an engine file; nothing here verifies them."""
    data, where = map_file(source)
    return tuple(fingerprint(slot[:KEY]) for slot in _slots(open_container(data, where), data))


def private_copy(data: memoryview) -> memoryview:
    """Copies the bytes of a mapped file to memory that no other process writes."""
    room = allocate(len(data))
    room[:] = np.frombuffer(data, np.uint8)
    return room.data


def _slots(found: Container, data: memoryview) -> list[bytes]:
    """Returns the filled slots of a file. Raises EngineError if its section of signatures is damaged."""
    if SIGNATURES not in found.rows:
        return []
    row = found.rows[SIGNATURES]
    if row.size != ROOM or row.offset + ROOM != len(data):
        raise EngineError(f"{found.damaged}its signatures must be its last {ROOM} bytes; {AGAIN}")
    room, digest = bytes(data[-ROOM:])[:SLOTS], bytes(data[SLOTS - ROOM :])
    if hashlib.sha256(room).digest() != digest:  # detects corruption only; the signatures themselves detect forgery
        raise EngineError(f"{found.damaged}its signatures are altered; {AGAIN}")
    return [slot for at in range(0, SLOTS, SLOT) if any(slot := room[at : at + SLOT])]


def _verify(slots: Sequence[bytes], data: memoryview, where: str) -> None:
    """Raises EngineError unless each slot has the signature of its key for this file."""
    if not slots:
        return
    with Needs("checking signatures", EngineError, "sign"):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    digest = hashlib.sha256(data[:-ROOM])
    digest.update(bytes(ROOM))
    for slot in slots:
        try:
            Ed25519PublicKey.from_public_bytes(slot[:KEY]).verify(slot[KEY:], CONTEXT + digest.digest())
        except (InvalidSignature, ValueError):
            raise EngineError(
                f"{where} was altered after {fingerprint(slot[:KEY])} signed it, or the signature was; do not run it,"
                " get it again from who signed it"
            ) from None


def _listed(keys: Sequence[bytes]) -> str:
    return ", ".join(map(fingerprint, dict.fromkeys(keys)))


# ---- keys ----


def private_key(given: Any) -> Ed25519PrivateKey:
    """Loads a private key: the path of a PEM file, its bytes, or an object of the package cryptography. Raises
    InputError, with the remedy, for anything else."""
    with Needs("signing engines", InputError, "sign"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    if isinstance(given, Ed25519PrivateKey):
        return given
    pem, where = _pem(given, "sign=", MAKE)
    try:
        key = load_pem_private_key(pem, None)
    except TypeError:
        raise InputError(f"{where} is encrypted; `openssl pkey -in KEY -out PLAIN` decrypts it") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(f"{where} is no private key in PEM form; {MAKE}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{where} is a key of another kind than Ed25519; {MAKE}")
    return key


def public_key(given: Any) -> Ed25519PublicKey:
    """Loads a public key: the path of a PEM file, its bytes, or an object of the package cryptography. Raises
    InputError, with the remedy, for anything else."""
    with Needs("checking signatures", InputError, "sign"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    if isinstance(given, Ed25519PublicKey):
        return given
    pem, where = _pem(given, "trust=", MAKE_PUBLIC)
    if b"PRIVATE KEY" in pem:
        raise InputError(f"{where} is a private key, to keep secret; {MAKE_PUBLIC}")
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(f"{where} is no public key in PEM form; {MAKE_PUBLIC}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{where} is a key of another kind than Ed25519; {MAKE}")
    return key


def _pem(given: Any, option: str, make: str) -> tuple[bytes, str]:
    """Returns the bytes of a key, and its name in messages."""
    if isinstance(given, (bytes, bytearray)):
        return bytes(given), f"the key of {option}"
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(
            f"{option} must be the path of a PEM file, its bytes, or a key of cryptography, got {given!r:.100}"
        )
    where = os.fspath(given)
    try:
        with open(where, "rb") as f:
            return f.read(LARGEST_KEY), f"{where}"
    except FileNotFoundError:
        raise InputAbsent(f"there is no key {where}; {make}", where) from None
    except (OSError, ValueError) as e:
        raise InputError(f"the key {where} cannot be read: {getattr(e, 'strerror', None) or e}") from None


def _raw(key: Ed25519PublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)
