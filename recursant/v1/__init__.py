"""Generated protobuf messages of the API version 1 (sources in proto/)."""
