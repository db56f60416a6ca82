# Holds the signals that end a run until its program can answer them, queues a Slurm job again that was interrupted, and
# reads options behind a script; sourced by the job scripts before anything that takes time. What is held is handed on as
# USR1, at which every rank finishes its epoch and all write a checkpoint: Open MPI's mpirun takes INT and TERM as orders
# to kill.
# shellcheck shell=bash

hpcgnn_signal=${hpcgnn_signal:-}      # the first signal that came, without SIG
hpcgnn_step=                          # process id of what hpcgnn_hold runs
hpcgnn_group=                         # not empty: in a process group of its own
hpcgnn_trapped=                       # not empty: a trap has run since this was emptied
hpcgnn_stops=(USR1 USR2 TERM XCPU HUP)   # by which sites, limits and terminals warn; INT where it is asked for

# Ranks of `hpcgnn train` start with the signals blocked: one that comes before the program's first lines have installed
# its handlers waits until then. An `env` of before 2019 can't block; ignored, a signal is lost, and repeated by us.
HPCGNN_QUIET_START=(env "--block-signal=USR1,USR2,TERM,XCPU")
"${HPCGNN_QUIET_START[@]}" true 2>/dev/null || HPCGNN_QUIET_START=(bash -c 'trap "" USR1 USR2 TERM XCPU; exec "$@"' rank)

# hpcgnn_note SIGNAL: the trap. USR1 is repeated until the step has ended, since a launcher that starts may lose it.
hpcgnn_note() {
    hpcgnn_trapped=1
    if [[ $1 == INT && -n $hpcgnn_signal && -n $hpcgnn_step ]]; then
        kill -TERM "$hpcgnn_step" 2>/dev/null || true       # Ctrl-C a second time
        return 0
    fi
    [[ -z $hpcgnn_signal ]] || return 0
    hpcgnn_signal=$1
    [[ $1 != INT ]] ||
        printf '\nhpcgnn: ending after this epoch with a checkpoint; Ctrl-C again ends at once, without one\n' >&2
    [[ -z $hpcgnn_step ]] || hpcgnn_repeat_usr1 &
}

hpcgnn_repeat_usr1() {
    exec >/dev/null 2>&1              # whoever reads the script's output need not wait for this
    trap '' INT
    while kill -USR1 "$(hpcgnn_launcher_of "$hpcgnn_step")"; do
        sleep 1
    done
}

# hpcgnn_launcher_of PID: that process, or its child where it is a `timeout`, which hands on every signal but USR1.
hpcgnn_launcher_of() {
    local children=
    [[ $(<"/proc/$1/comm") != timeout ]] || read -r children <"/proc/$1/task/$1/children" || true
    children=${children%% *}
    printf '%s' "${children:-$1}"
}

# hpcgnn_catch_signals [INT]: from here on the signals that warn, and INT where asked, are noted instead of ending the
# script.
hpcgnn_catch_signals() {
    local name
    hpcgnn_group=${1:-}
    for name in "${hpcgnn_stops[@]}" "$@"; do
        # shellcheck disable=SC2064  # the name is meant now
        trap "hpcgnn_note $name" "$name"
    done
}

# hpcgnn_hold COMMAND...: its exit status, or 75 without starting it where a signal was noted before. With INT among the
# signals it runs in a process group of its own, which the terminal's Ctrl-C does not reach.
hpcgnn_hold() {
    local status=0 previous first=1
    [[ -z $hpcgnn_signal ]] || return 75
    [[ -z $hpcgnn_group ]] || set -m
    (trap '' "${hpcgnn_stops[@]}"; exec "$@") </dev/null &
    hpcgnn_step=$!
    set +m
    [[ -z $hpcgnn_signal ]] || hpcgnn_repeat_usr1 &         # it came while the step was being started
    while :; do
        hpcgnn_trapped='' previous=$status status=0
        wait "$hpcgnn_step" 2>/dev/null || status=$?
        # A trap that ran as `wait` had already told the status: there is nothing left to wait for.
        ((first || status != 127)) || { status=$previous; break; }
        [[ -n $hpcgnn_trapped ]] || break                   # else the trap may have ended `wait` early
        first=0
    done
    hpcgnn_step=
    return "$status"
}

# hpcgnn_job_id: this job. The last task of an array has the number of the whole array as its own, which would name all.
hpcgnn_job_id() {
    printf '%s' "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
}

# hpcgnn_option NAME DEFAULT WORDS...: the value of the last `NAME VALUE` or `NAME=VALUE` among the words of a command.
hpcgnn_option() {
    local name=$1 value=$2
    shift 2
    while (($#)); do
        case $1 in
            "$name"=*) value=${1#*=} ;;
            "$name") (($# == 1)) || { value=$2; shift; } ;;
        esac
        shift
    done
    printf '%s' "$value"
}

# hpcgnn_has FLAG WORDS...: whether the flag is one of the words.
hpcgnn_has() {
    local flag=$1 word
    for word in "${@:2}"; do
        [[ $word != "$flag" ]] || return 0
    done
    return 1
}

# hpcgnn_job_field NAME: what Slurm knows of this job, such as JobState.
hpcgnn_job_field() {
    scontrol --oneliner show job "$(hpcgnn_job_id)" 2>/dev/null | grep -o "\b$1=[^ ]*" | head -n 1 | cut -d= -f2
}

# hpcgnn_interruption STATUS: what interrupted the run of this job that ended without a result, or nothing.
hpcgnn_interruption() {
    local preempted
    preempted=$(hpcgnn_job_field PreemptTime) || preempted=None
    # Preemption signals the steps only, and mpirun, which is none, may end with 0 when its daemons elsewhere are gone.
    if [[ -n $preempted && $preempted != None ]]; then
        echo "preempted"
    elif [[ -n $hpcgnn_signal ]]; then
        echo "stopped by $hpcgnn_signal"
    elif [[ $(hpcgnn_job_field Reason) == TimeLimit ]]; then
        echo "stopped by its time limit"
    elif (($1 == 75)); then
        echo "stopped by a signal to its ranks, or as its time ends"
    fi
}

# hpcgnn_is_wanted: false where the job was cancelled, or Slurm queues it again by itself (preempted without grace).
hpcgnn_is_wanted() {
    local state reason
    state=$(hpcgnn_job_field JobState) || state=
    reason=$(hpcgnn_job_field Reason) || reason=
    [[ -z $state || $state == RUNNING || $reason == TimeLimit ]]
}

# hpcgnn_stamp FILE: changes when the file is written anew.
hpcgnn_stamp() {
    stat -c '%i %y' "$1" 2>/dev/null || echo none
}

# hpcgnn_has_result RUN BEFORE: whether RUN/summary.json was written since it had the stamp BEFORE. A run that goes on from
# its checkpoint removes the summary of its earlier end.
hpcgnn_has_result() {
    [[ -f $1/summary.json && $(hpcgnn_stamp "$1/summary.json") != "$2" ]]
}

# hpcgnn_requeue_or_exit STATUS RUN BEFORE MOST: the last act of a job that trained into RUN; ends the script in every
# case. Queues the job again, at most MOST times, if it was interrupted before it wrote RUN/summary.json; BEFORE is the
# stamp that this file had when the job started. MOST 0 leaves the rest to another job: a checkpoint is then its success.
hpcgnn_requeue_or_exit() {
    local status=$1 run=$2 before=$3 most=$4 why ended job
    job=$(hpcgnn_job_id)
    trap - EXIT
    ! hpcgnn_has_result "$run" "$before" || exit 0     # whatever came then, came after the result
    why=$(hpcgnn_interruption "$status")
    if [[ -z $why ]]; then
        ((status == 0)) || exit "$status"
        echo "hpcgnn: the launcher ended with status 0, but left no $run/summary.json" >&2
        exit 1
    fi
    if ! hpcgnn_is_wanted; then
        echo "hpcgnn: $why, and the job is not queued again, because it was cancelled or Slurm does so itself" >&2
        exit "$status"
    fi
    # With 0, what goes on is another job, as in a chain: the checkpoint is all that this one had to leave.
    if ((most == 0 && status == 75)) && [[ -f $run/checkpoint.h5 ]]; then
        echo "hpcgnn: $why; $run has a checkpoint and no result yet, and the next job on it goes on" \
            "(most_restarts is 0)"
        exit 0
    fi
    if ((${SLURM_RESTART_COUNT:-0} >= most)); then
        echo "hpcgnn: $why; this job was already queued again $most times and ends without a result; submit it again" \
            "to go on, with more time if it got nowhere" >&2
        exit 1
    fi
    # Slurm sends TERM to all of the job as soon as it is queued, also to who asked for it.
    ended=''
    trap 'ended=1' TERM
    trap '' USR1 USR2 XCPU HUP
    echo "hpcgnn: $why; job $job is queued again and goes on from its last checkpoint"
    if ! (trap '' TERM; exec scontrol requeue "$job"); then
        echo "hpcgnn: Slurm does not queue it again (see above); submit the same command to go on" >&2
        exit 75
    fi
    [[ -z $ended ]] || exit 0
    # Ending before that TERM would mark the job as failed. No bash is left to remark on what is killed.
    trap - TERM
    exec sleep 60
}
