#!/bin/bash
set -e
for file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh; do
    if [ -r "$file" ]; then . "$file"; fi
done
module load gcc/12.2
module load cuda/12.4
export GREETING='it'"'"'s $HOME; `date`
end'
export SEED=7
exec /opt/carrel/bin/python -m carrel.runner.batch '/spool/7/1 x'
