#!/usr/bin/env bash
# Disturbs jobs/train.sbatch and jobs/preprocess.sbatch on a real Slurm of two nodes that it starts on this machine, at
# moments drawn from a seed, and checks that each run ends through requeues with every epoch once and the weights of an
# undisturbed run. It prints a table of tried and failed, and leaves slurm.json. Needs root and Debian's slurm-wlm, munge
# and libpmix-dev (Slurm's PMIx plugin opens libpmix.so); says so and ends with status 77 where they are missing.
#   bash tests/slurm/run.sh [--repeat 20] [--minutes M] [--seed 0] [--out build/slurm] [--only usr1-srun,limit-mpirun,..]
# --minutes stops starting runs after that long; the same --out goes on where it stopped.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
PATH+=:/usr/sbin:/sbin

missing=()
for program in slurmctld slurmd munged srun sbatch scontrol; do
    command -v "$program" >/dev/null || missing+=("$program")
done
if ((${#missing[@]} || EUID)); then
    echo "no Slurm can be started here: $([[ $EUID == 0 ]] || echo "not root;") missing: ${missing[*]:-nothing}" >&2
    exit 77
fi

HPCGNN_EXTRAS=${HPCGNN_EXTRAS:-report},test
# shellcheck source=jobs/env.sh
source "$here/../../jobs/env.sh"
cd "$HPCGNN_ROOT"
folder=$(mktemp -d)
trap 'bash "$here/cluster.sh" stop "$folder"; rm -rf "$folder"' EXIT
bash "$here/cluster.sh" start "$folder"
export SLURM_CONF=$folder/slurm.conf
# Two ranks of a job share a core of this machine.
export OMPI_MCA_mpi_yield_when_idle=1
python "$here/disturb.py" "$@"
