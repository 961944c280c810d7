"""Credentials in URLs are shown nowhere."""

import pytest
from botocore.exceptions import EndpointConnectionError

from headwater_core.objectstore.s3.error_codes import as_headwater_error
from headwater_core.redaction import redact, redact_all


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://AKIA7:se/cr+et@bucket/prefix", "s3://***@bucket/prefix"),
        ("https://me:p@ss@host:9000/x refused", "https://***@host:9000/x refused"),
        ('"https://token@host/": timed out', '"https://***@host/": timed out'),
        ("https://host/b?X-Amz-Signature=abc&list-type=2, again", "https://host/b?*** again"),
        ("http://proxy:secret@p:1 and s3://k:v@b", "http://***@p:1 and s3://***@b"),
        ("s3://bucket/data/orders/a.log: 403", "s3://bucket/data/orders/a.log: 403"),
        ("orders@IM3fuUQPS0Gn8Gxkq3Kigw and me@example.org", "orders@IM3fuUQPS0Gn8Gxkq3Kigw and me@example.org"),
        ("file:///var/lib/archive", "file:///var/lib/archive"),
    ],
)
def test_user_password_and_query_of_a_url_are_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_every_text_of_a_document_is_redacted() -> None:
    assert redact_all({"to": ["s3://a:b@c"], "count": 3, "none": None}) == {"to": ["s3://***@c"], "count": 3, "none": None}


def test_an_error_of_the_store_client_shows_no_credentials() -> None:
    error = EndpointConnectionError(endpoint_url="https://host/?token=abc")
    assert "abc" not in str(as_headwater_error("s3://bucket/a", error, write=False))
