"""A file in the form that Kafka's tools take with --command-config."""

from pathlib import Path

import botocore
import pytest

from headwater.broker.client_properties import ClientProperties, load_client_properties, parse_properties
from headwater_core.errors import UsageError
from headwater_core.files import replace_file

AUTHORITIES = (Path(botocore.__file__).parent / "cacert.pem").read_text("utf-8")
SECRET = "open sesame"


def load(tmp_path: Path, text: str) -> ClientProperties:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return load_client_properties(path)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_properties_are_read_as_java_reads_them() -> None:
    text = "# comment\n! comment\n\na=1\nb : 2\nc 3\n  d = x\\\n     y=z\ne\\ e=\\u0041\\t\\:\nf\n"
    assert dict(parse_properties(text)) == {"a": "1", "b": "2", "c": "3", "d": "xy=z", "e e": "A\t:", "f": ""}


def test_without_a_file_the_connection_is_plain() -> None:
    assert load_client_properties(None).security_protocol == "PLAINTEXT"


def test_user_and_password_stand_in_the_jaas_configuration(tmp_path: Path) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    found = load(
        tmp_path,
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} required \\\n  username="ada" \\\n  password="{SECRET}";\nacks=all\n',
    )
    assert (found.mechanism, found.username, found.password, found.uses_sasl) == ("SCRAM-SHA-512", "ada", SECRET, True)
    assert found.ignored == ("acks",)
    assert SECRET not in repr(found)
    assert "ada" not in repr(found)


def test_or_as_keys_of_their_own(tmp_path: Path) -> None:
    found = load(tmp_path, f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nusername=ada\npassword={SECRET}\nrequest.timeout.ms=500\n")
    assert (found.username, found.password, found.request_timeout_s) == ("ada", SECRET, 0.5)
    assert found.tls is not None
    assert found.tls.check_hostname


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("security.protokol=SSL", "did you mean 'security.protocol'?"),
        (f"sasl.oauthbearer.token.endpoint.url={SECRET}", "not supported"),
        ("security.protocol=TLS", "security.protocol is none of"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", "sasl.mechanism must be one of PLAIN, SCRAM"),
        (f'security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=x required password="{SECRET}";', "username and password"),
        ("security.protocol=SSL\nssl.truststore.location=/x.jks", "ssl.truststore.type must be PEM"),
        ("security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/nowhere.pem", "ssl.truststore.location cannot be used"),
        (f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.certificates={SECRET}", "ssl.truststore.certificates cannot be"),
        ("security.protocol=SSL\nssl.endpoint.identification.algorithm=ldap", "https, or empty"),
        (f"request.timeout.ms={SECRET}", "request.timeout.ms"),
        (f"request.timeout.ms={'1' * 5000}", "request.timeout.ms"),
        (f"ssl.keystore.key={SECRET}", "ssl.keystore.key must be in a file"),
        (f"security.protocol=SASL_SSL\nssl.keystore.key={SECRET}", "ssl.keystore.key must be in a file"),
        ("password=\\ud83d", "password has half of a surrogate pair"),
        ("passwordMII/x+=", "a key is not supported"),
    ],
)
def test_what_would_be_misunderstood_is_an_error_that_shows_no_value(tmp_path: Path, text: str, why: str) -> None:
    assert why in refused(tmp_path, text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"log.client_properties: cannot read .*nowhere"):
        load_client_properties(tmp_path / "nowhere")


def test_lines_of_a_key_that_were_not_continued_are_counted_and_not_named(tmp_path: Path) -> None:
    lines = ["MIIEvQIBADANBgkqhkiG9w0BAQEF", "AASCBKcwggSjAgEAAoIBAQC7+/", "-----END PRIVATE KEY-----", "x" * 81]
    found = load(tmp_path, "\n".join(["acks=all", "my.key=-----BEGIN PRIVATE KEY-----", *lines]))
    assert (found.ignored, found.other_lines) == (("acks", "my.key"), len(lines))


def test_lines_end_and_characters_are_joined_as_in_java() -> None:
    text = "a=1\u20282\x853\rb=\\ud83d\\ude00\r\nc=4"
    assert dict(parse_properties(text)) == {"a": "1\u20282\x853", "b": "\U0001f600", "c": "4"}


def scram(password: str) -> str:
    return f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nusername=ada\npassword={password}\n"


def test_a_password_that_changes_in_the_file_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(scram("first"))
    loaded = load_client_properties(path)
    assert loaded.current() is loaded
    replace_file(path, scram("second").encode())
    assert (loaded.password, loaded.current().password) == ("first", "second")
    replace_file(path, scram("third").encode())
    assert loaded.current().current().password == "third"


@pytest.mark.parametrize(
    "half", ["", "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nusername=ada\n", "ssl.truststore.typ=PEM\n"]
)
def test_half_a_file_leaves_the_former_password_in_use(tmp_path: Path, half: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(scram("first"))
    loaded = load_client_properties(path)
    replace_file(path, scram("second").encode())
    assert loaded.current().password == "second"
    path.write_text(half)
    assert loaded.current().password == "second"
    path.unlink()
    assert loaded.current().password == "second"
    path.write_text(scram("third"))
    assert loaded.current().password == "third"


def test_an_authority_that_is_replaced_through_a_link_is_taken_up(tmp_path: Path) -> None:
    """As Kubernetes mounts a secret."""
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ca.pem").write_text(AUTHORITIES if name == "v1" else "no certificate")
    (tmp_path / "..data").symlink_to("v1")
    path = tmp_path / "client.properties"
    path.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={tmp_path}/..data/ca.pem\n")
    loaded = load_client_properties(path)

    def exchange(version: str) -> None:
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    exchange("v2")
    assert loaded.current() is loaded  # it is no certificate
    (tmp_path / "v3").mkdir()
    (tmp_path / "v3" / "ca.pem").write_text(AUTHORITIES)
    exchange("v3")
    assert loaded.current().tls not in (None, loaded.tls)
