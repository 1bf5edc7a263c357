"""The S3 side: the embedded object store and the layer in front of it."""
