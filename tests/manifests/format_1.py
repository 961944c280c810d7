"""Heads as versions before pages wrote them: format 1, every entry in the head, every key spelled out."""

from typing import Any

import msgspec

from manifests.document import seal
from manifests.head import Head, HeadFields


def body_of(head: Head, **fields: Any) -> dict[str, Any]:
    """The document without its digest, as plain values; `fields` replace or add some."""
    plain = {name: msgspec.to_builtins(getattr(head, name)) for name in HeadFields.__struct_fields__ if name != "pending"}
    entries, superseded = ([msgspec.to_builtins(each) for each in listed] for listed in (head.entries, head.superseded))
    return {**plain, "format": [1, 2], "entries": entries, "superseded": superseded, "pages": [], **fields}


def encode(head: Head, **fields: Any) -> bytes:
    """The bytes that stood in the bucket."""
    return encode_body(body_of(head, **fields))


def encode_body(body: dict[str, Any]) -> bytes:
    """Any document with its digest."""
    return seal(msgspec.defstruct("Document", [(name, Any) for name in body], kw_only=True)(**body))
