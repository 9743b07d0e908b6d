#!/bin/bash
set -e
exec /opt/carrel/bin/python -m carrel.node.runner.batch '/spool/7/1 x'
