"""Tokens: the file, and whose token a header carries."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloserve.core.errors import ConfigProblem, Unauthenticated
from hloserve.server.tokens import Grant, Keyring, Scope, parse_tokens, token_of

ALICE, OPS = "a" * 32, "0123456789abcdef._~+/-=="
FILE = f"""\
# who    may           with
alice    infer         {ALICE}

ops\tinfer,admin\t{OPS}
""".encode()


def _refusals(data: bytes) -> list[str]:
    with pytest.raises(ConfigProblem) as caught:
        parse_tokens(data, "tokens")
    return str(caught.value).splitlines()


def test_a_line_is_name_scopes_and_token() -> None:
    """Blank lines and comments are passed over, any white space separates."""
    keyring = parse_tokens(FILE, "tokens")

    assert 2 == len(keyring)
    assert Grant("alice", is_admin=False) == keyring.find(ALICE.encode())
    assert Grant("ops", is_admin=True) == keyring.find(OPS.encode())
    assert keyring.find(ALICE[:-1].encode()) is None
    assert keyring.find(b"") is None


def test_a_token_may_be_given_as_its_hash() -> None:
    """So the file need not hold a secret."""
    digest = hashlib.sha256(ALICE.encode()).hexdigest()

    keyring = parse_tokens(f"alice infer sha256:{digest.upper()}".encode(), "tokens")

    assert keyring.find(ALICE.encode()) is not None
    assert keyring.find(f"sha256:{digest}".encode()) is None


def test_admin_includes_infer() -> None:
    """Who may change the server may ask it."""
    for scopes, admin in (("admin", True), ("infer", False), ("infer,admin", True)):
        grant = parse_tokens(f"x {scopes} {ALICE}".encode(), "tokens").find(ALICE.encode())
        assert grant is not None
        assert grant.may(Scope.INFER)
        assert admin is grant.may(Scope.ADMIN)


def test_memory_holds_no_token() -> None:
    """What is kept is a hash under a key of this process."""
    one, other = parse_tokens(FILE, "tokens"), parse_tokens(FILE, "tokens")

    kept = [set(ring._grants) for ring in (one, other)]

    assert not kept[0] & kept[1]
    assert hashlib.sha256(ALICE.encode()).digest() not in kept[0]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "holds no token, which would lock everybody out"),
        (b"\n# nobody\n", "holds no token"),
        (b"alice infer", "line 1: must be three words, NAME SCOPES TOKEN; words: 2"),
        (
            b"alice infer x y " + ALICE.encode(),
            "line 1: must be three words, NAME SCOPES TOKEN; words: 5",
        ),
        (b"al!ce infer " + ALICE.encode(), "line 1: the name, its first word"),
        (b"alice root " + ALICE.encode(), "line 1: the scopes, its second word"),
        (b"alice infer, " + ALICE.encode(), "line 1: the scopes, its second word"),
        (b"alice infer short", "line 1: the token has 5 characters; it must have 16 to 1024"),
        (b"alice infer " + b"x" * 1025, "line 1: the token has 1025 characters"),
        ("alice infer ключключключключ".encode(), "line 1: the token may have letters"),
        (b"\n\xff\xfe", "line 2: is not UTF-8 text"),
        (b"alice infer sha256:abcdefabcdef", "line 1: the token may have letters"),
        (FILE + b"alice admin " + b"b" * 16, "line 5: the name is there already"),
        (FILE + b"bob admin " + ALICE.encode(), "line 5: the token is there already"),
    ],
)
def test_lines_that_are_wrong_are_told_by_number(data: bytes, told: str) -> None:
    """A file that is not understood is refused as a whole."""
    assert told in _refusals(data)[0]


def test_everything_that_is_wrong_is_told_and_nothing_of_the_file() -> None:
    """A token in the wrong place must not end up in a log."""
    lines = _refusals(f"{ALICE} alice infer\nalice {OPS} infer\n{OPS}\n".encode())

    assert 3 == len(lines)
    assert not any(ALICE in line or OPS in line for line in lines)


def test_a_byte_order_mark_is_not_a_name() -> None:
    """Editors put it there."""
    assert 2 == len(parse_tokens(b"\xef\xbb\xbf" + FILE, "tokens"))


def test_windows_line_ends_are_line_ends() -> None:
    """The carriage return is not a part of the token."""
    keyring = parse_tokens(FILE.replace(b"\n", b"\r\n"), "tokens")

    assert keyring.find(ALICE.encode()) is not None


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer abc",
        b"bearer abc",
        b"BEARER abc",
        b"Bearer   abc",
        b" Bearer abc ",
        b"Bearer abc\t",
    ],
)
def test_the_scheme_is_read_in_any_case_and_space(header: bytes) -> None:
    """RFC 7235: the scheme's case is free."""
    assert b"abc" == token_of(header)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (None, "has none"),
        (b"", "not one bearer token"),
        (b"Bearer", "not one bearer token"),
        (b"Bearer ", "not one bearer token"),
        (b"Bearerabc", "not one bearer token"),
        (b"Basic YTpi", "not one bearer token"),
        (b"Bearer a b", "not one bearer token"),
        (b"Bearer abc, Bearer abc", "not one bearer token"),
        (b"Bearer a=b", "not one bearer token"),
        (b"Bearer \xc3\xa9", "not one bearer token"),
        (b"Bearer a\0b", "not one bearer token"),
        (b"Bearer abc\n", "not one bearer token"),
        (b"Bearer " + b"x" * 5000, "longer than 1024 characters"),
    ],
)
def test_other_headers_are_refused_without_being_shown(header: bytes | None, told: str) -> None:
    """What is sent may be a secret of somebody, so the answer does not repeat it."""
    with pytest.raises(Unauthenticated, match=told) as caught:
        token_of(header)

    assert (header is not None) is caught.value.has_token
    assert "abc" not in str(caught.value)


@given(st.binary(max_size=200))
def test_any_header_is_a_token_or_refused(header: bytes) -> None:
    """Nothing that a client sends raises anything else."""
    try:
        token = token_of(header)
    except Unauthenticated:
        return
    assert token in header


@given(st.binary(max_size=300))
def test_any_file_is_tokens_or_refused(data: bytes) -> None:
    """Nothing that a file holds raises anything else."""
    try:
        keyring = parse_tokens(data, "tokens")
    except ConfigProblem:
        return
    assert isinstance(keyring, Keyring)
    assert len(keyring) > 0
