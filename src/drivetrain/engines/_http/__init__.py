"""The upstream HTTP/1.1 client: the hot path's way to an engine, small and the only one of its kind.

It keeps connections and reuses them, delivers a body as it arrives, and takes closing as cancelling. It knows no
redirects, cookies, proxies or compression: an engine needs none. Failures come out as Drivetrain's own errors.
"""

from drivetrain.engines._http.upstream import Answer, Upstream

__all__ = ["Answer", "Upstream"]
