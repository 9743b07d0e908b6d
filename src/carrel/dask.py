"""Dask on the lab's machines: ``carrel.dask.CarrelCluster``, whose workers are jobs of the lab."""

from carrel.wire.needs import importing

try:
    with importing("carrel.dask"):
        from carrel.client.dask_cluster import CarrelCluster
except ImportError as error:
    if (error.name or "").partition(".")[0] not in ("dask", "distributed"):
        raise
    raise ImportError("carrel.dask needs dask.distributed, which is not installed here: pip install distributed") from error

__all__ = ["CarrelCluster"]
