"""From the URL of an archive to the store that holds it."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from headwater_core.errors import UsageError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import ObjectStore
from headwater_core.redaction import redact


def open_store(url: str, *, endpoint_url: str | None = None, region: str | None = None) -> ObjectStore:
    """The store at `url`: file:///absolute/path or s3://bucket/prefix. No request is made yet.

    Raises UsageError when the URL is neither, and what making an S3 client may raise.
    """
    try:
        place = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"not a URL: {error}") from None
    if place.query or place.fragment or place.username is not None:
        raise UsageError("an archive's URL is a place only: no user, query or fragment")
    if place.scheme == "file":
        if place.netloc not in ("", "localhost") or not place.path.startswith("/") or place.path.strip("/") == "":
            raise UsageError(f"not an absolute directory: {redact(url)!r} (file:///path has three slashes)")
        if endpoint_url or region:
            raise UsageError("endpoint_url and region are for s3:// only")
        return DirectoryStore(Path(unquote(place.path)))
    if place.scheme == "s3":
        if not place.netloc:
            raise UsageError(f"no bucket in {redact(url)!r} (s3://bucket/prefix)")
        from headwater_core.objectstore.s3 import S3Store  # boto3 takes a third of a second to import

        return S3Store(place.netloc, place.path.strip("/"), endpoint_url=endpoint_url, region=region)
    raise UsageError(f"no store for {redact(url)!r}: file:///path and s3://bucket/prefix are known")
