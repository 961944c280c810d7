"""What a client says to authenticate itself, message by message. Pure: the random word comes from the caller.

Source: RFC 4616 (PLAIN), RFC 5802 and RFC 7677 (SCRAM).
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Generator

from headwater_core.errors import Unauthorised

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS_MAX = 1_000_000  # half a second of computing; Kafka's own limit of what it stores is 16,384

Exchange = Generator[bytes, bytes, None]
"""Yields what the client says, and gets the server's answer to each. Raises Unauthorised when the server does not know the password."""


def authenticate(mechanism: str, username: str, password: str, nonce: str) -> Exchange:
    """nonce: printable, without a comma, new for each exchange"""
    if mechanism == "PLAIN":
        return _plain(username, password)
    return _scram(_HASHES[mechanism], username, password, nonce)


def _plain(username: str, password: str) -> Exchange:
    yield f"\0{username}\0{password}".encode()


def _scram(hash_name: str, username: str, password: str, nonce: str) -> Exchange:
    first_bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    server_first = yield f"n,,{first_bare}".encode()
    answer = _attributes(server_first)
    try:
        theirs, salt, iterations = answer["r"], base64.b64decode(answer["s"], validate=True), int(answer["i"])
    except (KeyError, ValueError, binascii.Error):
        raise Unauthorised("the broker's SCRAM message makes no sense") from None
    if not theirs.startswith(nonce) or theirs == nonce or not 1 <= iterations <= _ITERATIONS_MAX:
        raise Unauthorised("the broker's SCRAM message is no answer to ours")
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    last_bare = f"c=biws,r={theirs}"
    signed = b",".join((first_bare.encode(), server_first, last_bare.encode()))
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    server_last = yield f"{last_bare},p={base64.b64encode(proof).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    if not hmac.compare_digest(_attributes(server_last).get("v", "").encode(), base64.b64encode(expected)):
        raise Unauthorised("the broker could not prove that it knows the password")


def _attributes(message: bytes) -> dict[str, str]:
    parts = (part.partition("=") for part in message.decode("utf-8", "replace").split(","))
    return {key: value for key, _, value in parts}
