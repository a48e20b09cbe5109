"""Parts that inject faults: everything here is a real server on a real socket, stopped by the test that started it."""

from tests.fakes.replies import Raw, Reply, Stream, Whole, failure, ndjson, sse
from tests.fakes.upstream import FakeUpstream, Received

__all__ = ["FakeUpstream", "Raw", "Received", "Reply", "Stream", "Whole", "failure", "ndjson", "sse"]
