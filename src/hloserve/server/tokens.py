"""Bearer tokens: the file that lists them, and whose token a call carries.

What lives here: text to `Keyring`, and a header to a token. What does not: which call needs what
(`hloserve.server.access`) and when the file is read (`hloserve.server.security`). Pure; any thread.

Rules.
1. A token is kept as a hash under a key that only this process has. So memory holds no token, and
   how long a look-up takes says nothing about the tokens that exist.
2. No message holds a word of the file or of a header: it may be a token in the wrong place.

Source: RFC 6750 (bearer tokens).
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256

from hloserve.core.errors import ConfigProblem, Unauthenticated

__all__ = ["Grant", "Keyring", "Scope", "parse_tokens", "token_of"]

_SHORTEST_TOKEN, _LONGEST_TOKEN = 16, 1024
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})", re.ASCII)
_HEADER = re.compile(rb"[ \t]*bearer +([A-Za-z0-9._~+/-]+=*)[ \t]*", re.IGNORECASE)


class Scope(Enum):
    """What a token is for; `admin` includes `infer`."""

    INFER = "infer"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token stands for: the name that the log shows, and what it may do.

    Every token may infer, since `admin` includes it.
    """

    name: str
    is_admin: bool

    def may(self, scope: Scope) -> bool:
        """True when calls of that scope are allowed."""
        return self.is_admin or scope is Scope.INFER


class Keyring:
    """The tokens that are valid now. Immutable.

    Args:
        grants: by the SHA-256 digest of the token.
    """

    __slots__ = ("_grants", "_key")

    def __init__(self, grants: Mapping[bytes, Grant]) -> None:
        self._key = secrets.token_bytes(32)
        self._grants = {self._place(digest): grant for digest, grant in grants.items()}

    def __len__(self) -> int:
        return len(self._grants)

    def find(self, token: bytes) -> Grant | None:
        """The grant of a token; None for one that is not valid."""
        return self._grants.get(self._place(sha256(token).digest()))

    def _place(self, digest: bytes) -> bytes:
        # Of fixed length, and never shown: nothing is gained by HMAC.
        return sha256(self._key + digest).digest()


def token_of(header: bytes | None) -> bytes:
    """Take the token out of an `authorization` header.

    Raises:
        Unauthenticated: there is none, or it is not of the form ``Bearer TOKEN``.
    """
    if header is None:
        raise Unauthenticated("this call needs a token and has none", has_token=False)
    if len(header) > _LONGEST_TOKEN + 32:
        raise Unauthenticated(
            f"the token is longer than {_LONGEST_TOKEN} characters", has_token=True
        )
    match = _HEADER.fullmatch(header)
    if match is None:
        raise Unauthenticated(
            "the header `authorization` is not one bearer token of letters, digits and -._~+/",
            has_token=True,
        )
    return match[1]


def parse_tokens(data: bytes, source: str) -> Keyring:
    """Read a tokens file: lines of a name, scopes and a token.

    Args:
        data: its content.
        source: what messages call it.

    Raises:
        ConfigProblem: a line is wrong, or there is no token; it carries all that is wrong.
    """
    problems: list[ConfigProblem] = []
    grants: dict[bytes, Grant] = {}
    names: set[str] = set()
    for number, line in _lines(data, source):
        try:
            grant, digest = _read_line(line)
            if grant.name in names:
                raise _Refused("the name is there already; give each token its own")
            if digest in grants:
                raise _Refused("the token is there already, under another name")
        except _Refused as refusal:
            problems.append(ConfigProblem(source, f"line {number}", str(refusal)))
        else:
            names.add(grant.name)
            grants[digest] = grant
    if not grants and not problems:
        problems.append(ConfigProblem(source, "", "holds no token, which would lock everybody out"))
    if problems:
        first, *others = problems
        raise ConfigProblem(first.source, first.at, first.reason, others)
    return Keyring(grants)


class _Refused(Exception):
    """What is wrong with one line."""


def _lines(data: bytes, source: str) -> Iterator[tuple[int, str]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ConfigProblem(source, f"line {number}", "is not UTF-8 text") from None
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def _read_line(line: str) -> tuple[Grant, bytes]:
    words = line.split()
    if len(words) != 3:
        raise _Refused(f"must be three words, NAME SCOPES TOKEN; words: {len(words)}")
    name, scopes, token = words
    if _NAME.fullmatch(name) is None:
        raise _Refused("the name, its first word, must be up to 64 letters, digits and ._@-")
    try:
        found = [Scope(word) for word in scopes.split(",")]
    except ValueError:
        raise _Refused("the scopes, its second word, must be infer, admin or infer,admin") from None
    return Grant(name, is_admin=Scope.ADMIN in found), _digest(token)


def _digest(token: str) -> bytes:
    hashed = _HASHED.fullmatch(token)
    if hashed is not None:
        return bytes.fromhex(hashed[1])
    if not _SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN:
        raise _Refused(
            f"the token has {len(token)} characters; it must have {_SHORTEST_TOKEN} to"
            f" {_LONGEST_TOKEN}: `openssl rand -hex 32` makes one"
        )
    if _TOKEN.fullmatch(token) is None:
        raise _Refused(
            "the token may have letters, digits and -._~+/ with = at its end, or be sha256: and 64"
            " hexadecimal digits"
        )
    return sha256(token.encode("ascii")).digest()
