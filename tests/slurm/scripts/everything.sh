#!/bin/bash
set -e
(
for file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh; do
    if [ -r "$file" ]; then . "$file" || true; fi
done
if ! type module > /dev/null 2>&1 && [ -r "$MODULESHOME/init/bash" ]; then . "$MODULESHOME/init/bash" || true; fi
module load gcc/12.2
module load cuda/12.4
env -0 > modules.environ
)
export GREETING='it'"'"'s $HOME; `date`
end'
export SEED=7
exec /opt/carrel/bin/python -m carrel.node.runner.batch '/spool/7/1 x'
