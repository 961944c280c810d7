"""Objects in S3, or in a store that speaks it."""

from headwater_core.objectstore.s3.s3_store import S3Store

__all__ = ["S3Store"]
