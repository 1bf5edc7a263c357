"""An S3 client that uses only the standard library, for agents and for programs that have no boto3.

uris         s3:// URIs as bucket and key
connections  a pool of HTTP connections to one endpoint
store_time   the time for signatures, corrected by the store's time
stored_names names of keys that the embedded store would take for other keys
exchange     one signed request and its answer, retried with back-off
reading      downloads: streams that survive broken connections, parallel ranges into a file
writing      uploads: single and multipart
listing      pages of a bucket
store        `ObjectStore`, the client for other packages
"""

from clary.contract.object_store.listing import Listing, ObjectInfo
from clary.contract.object_store.reading import whole_file
from clary.contract.object_store.store import ObjectStore
from clary.contract.object_store.uris import S3Uri, parse_s3_uri
from clary.contract.object_store.writing import ObjectWriter

__all__ = ["Listing", "ObjectInfo", "ObjectStore", "ObjectWriter", "S3Uri", "parse_s3_uri", "whole_file"]
