"""One connection to a broker, over a real socket."""

import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headwater.broker.broker_connection import UNAUTHENTICATED_BYTES_MAX, BrokerAddress, BrokerApi, BrokerConnection
from headwater.broker.client_properties import ClientProperties, load_client_properties
from headwater_core.errors import TransientError, Unauthorised, UnsupportedFormat, UsageError
from headwater_core.files import replace_file
from tests.headwater.socket_broker import ALL, Answer, SocketBroker, scram_server

QUORUM = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
SASL = ClientProperties(security_protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", username="ada", password="open sesame")


def no_quorum(_: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"error_code": 0, "topics": []}


def handshake(_: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"error_code": 0, "mechanisms": ["SCRAM-SHA-256"]}


def test_a_request_is_answered() -> None:
    with SocketBroker({BrokerApi.DESCRIBE_QUORUM: no_quorum}) as broker:
        connection = BrokerConnection(broker.address, ClientProperties())
        assert connection.ask(BrokerApi.DESCRIBE_QUORUM, QUORUM) == {"error_code": 0, "topics": []}
        assert connection.failure is None
        connection.close()
    assert [api for api, _ in broker.asked] == [BrokerApi.API_VERSIONS, BrokerApi.DESCRIBE_QUORUM]


def test_a_broker_that_lacks_a_request_is_too_old() -> None:
    known: dict[BrokerApi, int] = {api: version for api, version in ALL.items() if api != BrokerApi.DELETE_RECORDS}
    with SocketBroker({}, knows=known) as broker, pytest.raises(UnsupportedFormat, match="does not know DELETE_RECORDS"):
        BrokerConnection(broker.address, ClientProperties())


def test_both_sides_prove_that_they_know_the_password() -> None:
    answers: dict[BrokerApi, Answer] = {
        BrokerApi.SASL_HANDSHAKE: handshake,
        BrokerApi.SASL_AUTHENTICATE: scram_server("sha256", "ada", "open sesame"),
    }
    with SocketBroker(answers) as broker:
        BrokerConnection(broker.address, SASL).close()
    assert all(b"open sesame" not in fields.get("auth_bytes", b"") for _, fields in broker.asked)


def test_a_wrong_password_is_said_so_without_the_password() -> None:
    answers: dict[BrokerApi, Answer] = {
        BrokerApi.SASL_HANDSHAKE: handshake,
        BrokerApi.SASL_AUTHENTICATE: scram_server("sha256", "ada", "another"),
    }
    with SocketBroker(answers) as broker, pytest.raises(Unauthorised, match="wrong user or password") as caught:
        BrokerConnection(broker.address, SASL)
    assert "sesame" not in str(caught.value)


def test_a_new_connection_shows_the_password_that_the_file_has_now(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    text = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nusername=ada\npassword={}\n"
    path.write_text(text.format("before"))
    properties = load_client_properties(path)
    replace_file(path, text.format("open sesame").encode())
    answers: dict[BrokerApi, Answer] = {
        BrokerApi.SASL_HANDSHAKE: handshake,
        BrokerApi.SASL_AUTHENTICATE: scram_server("sha256", "ada", "open sesame"),
    }
    with SocketBroker(answers) as broker:
        BrokerConnection(broker.address, properties).close()


def test_a_mechanism_that_the_broker_does_not_take_is_named() -> None:
    refusal: Answer = lambda _: {"error_code": 33, "mechanisms": ["PLAIN", "OAUTHBEARER"]}  # noqa: E731
    with SocketBroker({BrokerApi.SASL_HANDSHAKE: refusal}) as broker, pytest.raises(Unauthorised, match="it takes PLAIN, OAUTHBEARER"):
        BrokerConnection(broker.address, SASL)


def test_a_connection_that_is_closed_has_failed() -> None:
    with SocketBroker({BrokerApi.DESCRIBE_QUORUM: lambda _: None}) as broker:
        connection = BrokerConnection(broker.address, ClientProperties())
        with pytest.raises(TransientError, match="closed the connection"):
            connection.ask(BrokerApi.DESCRIBE_QUORUM, QUORUM)
        assert connection.failure is not None
        connection.close()


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\5abcde", b"\x15\x03\x03\x00\x02\x02\x16"])
def test_what_is_no_broker_is_not_believed(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1024)
                client.sendall(said)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(TransientError):
            BrokerConnection(BrokerAddress(*listener.getsockname()[:2]), ClientProperties())
        thread.join()


def test_where_nobody_listens_says_where() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = BrokerAddress(*listener.getsockname()[:2])
    with pytest.raises(TransientError, match=str(address.port)):
        BrokerConnection(address, ClientProperties())


def test_an_address_is_host_and_port() -> None:
    assert BrokerAddress.parse("[::1]:9092") == ("::1", 9092)
    assert str(BrokerAddress.parse(" broker-1.example:9092 ")) == "broker-1.example:9092"
    for wrong in ("broker", ":9092", "broker:", "broker:0", "broker:99999", f"broker:{'1' * 5000}", "broker:x"):
        with pytest.raises(UsageError, match="is not host:port"):
            BrokerAddress.parse(wrong)


def test_what_is_no_address_is_a_broker_that_does_not_answer() -> None:
    with pytest.raises(TransientError, match="this is no address"):
        BrokerConnection(BrokerAddress("broker1..example", 9092), ClientProperties())


def test_a_password_that_cannot_be_encoded_is_not_shown() -> None:
    mine = ClientProperties(security_protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", username="ada", password="sesame\ud83d")
    answers: dict[BrokerApi, Answer] = {
        BrokerApi.SASL_HANDSHAKE: handshake,
        BrokerApi.SASL_AUTHENTICATE: scram_server("sha256", "ada", "sesame"),
    }
    with SocketBroker(answers) as broker, pytest.raises(TransientError, match=r"cannot be secured: UnicodeEncodeError$"):
        BrokerConnection(broker.address, mine)


def test_before_it_is_authenticated_a_broker_may_not_say_much() -> None:
    answers: dict[BrokerApi, Answer] = {
        BrokerApi.SASL_HANDSHAKE: handshake,
        BrokerApi.SASL_AUTHENTICATE: lambda _: {"error_code": 0, "error_message": None, "auth_bytes": bytes(UNAUTHENTICATED_BYTES_MAX)},
    }
    with SocketBroker(answers) as broker, pytest.raises(TransientError, match=r"was answered with 10485\d\d bytes"):
        BrokerConnection(broker.address, SASL)


def test_the_time_out_is_for_the_whole_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1024)
                try:
                    client.sendall((100).to_bytes(4, "big"))
                    for _ in range(100):
                        client.sendall(b"x")
                        time.sleep(0.1)
                except OSError:
                    return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with pytest.raises(TransientError, match="timed out"):
            BrokerConnection(BrokerAddress(*listener.getsockname()[:2]), ClientProperties(request_timeout_s=0.3))
        thread.join()
