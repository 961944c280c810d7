"""Authentication, against the examples of its specifications."""

import base64

import pytest

from headwater.broker.sasl import authenticate
from headwater_core.errors import Unauthorised

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def test_plain_is_one_message() -> None:
    exchange = authenticate("PLAIN", "tim", "tanstaaftanstaaf", "")
    assert next(exchange) == b"\0tim\0tanstaaftanstaaf"
    with pytest.raises(StopIteration):
        exchange.send(b"")


def test_scram_is_the_example_of_rfc_7677() -> None:
    exchange = authenticate("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.send(FIRST) == b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=" + proof
    with pytest.raises(StopIteration):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    exchange = authenticate("SCRAM-SHA-256", "user", "pencil", NONCE)
    next(exchange)
    exchange.send(FIRST)
    with pytest.raises(Unauthorised, match="could not prove"):
        exchange.send(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    "first", [b"", b"r=x,s=c2FsdA==,i=1", FIRST[:-4] + b"many", FIRST[:-4] + b"99999999999", b"r=" + NONCE.encode() + b",s=,i=1"]
)
def test_a_message_that_is_no_answer_is_refused(first: bytes) -> None:
    exchange = authenticate("SCRAM-SHA-256", "user", "pencil", NONCE)
    next(exchange)
    with pytest.raises(Unauthorised):
        exchange.send(first)


def test_a_user_name_may_hold_what_separates_attributes() -> None:
    assert next(authenticate("SCRAM-SHA-512", "a=b,c", "x", "n")) == b"n,,n=a=3Db=2Cc,r=n"
