#!/bin/bash
set -e
exec /opt/carrel/bin/python -m carrel.runner.batch '/spool/7/1 x'
