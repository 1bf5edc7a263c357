"""Media types that the encoders know."""

JSON = "application/json"
CSV = "text/csv"
NPY = "application/x-npy"
OCTET_STREAM = "application/octet-stream"
ANY = "*/*"
UTF8_TYPES = [JSON, CSV]
