"""What the configuration says of the archive's place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """`url` is file:///absolute/path or s3://bucket/prefix; the rest is for S3. Credentials never stand here."""

    url: str = "file:///var/lib/headwater/archive"
    endpoint_url: str | None = None
    region: str | None = None
