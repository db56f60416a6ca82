#!/usr/bin/env bash
# A Slurm of two nodes on this one machine, for tests: cluster.sh start|stop FOLDER. Needs root and Debian's slurm-wlm,
# munge and libpmix2 (or the like); FOLDER holds all that it writes, and a cluster beside it is not disturbed.
# Each node has all cores of the machine. The partition `batch` is preempted by the partition `urgent`, whose jobs
# requeue those of batch after 10 s of grace. Export SLURM_CONF=FOLDER/slurm.conf to submit to it.
set -euo pipefail
verb=${1:?start or stop} folder=$(realpath -m "${2:?a folder}")
export SLURM_CONF=$folder/slurm.conf
PATH+=:/usr/sbin:/sbin

# free_ports N: as many ports that nothing listens on.
free_ports() {
    python3 -c '
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(each.getsockname()[1] for each in sockets))' "$1"
}

write_config() {
    local host cores controller first second node
    host=$(hostname -s) cores=$(nproc)
    read -r controller first second <<<"$(free_ports 3)"
    # cred_expire is also how long a requeued job waits before it starts again, 120 s where it is not set.
    cat >"$SLURM_CONF" <<END
ClusterName=hpcgnn
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/%n
TmpFS=$folder/%n/tmp
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
MpiDefault=none
ReturnToService=2
KillWait=20
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
PartitionName=batch Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10
END
    for node in "n1 $first" "n2 $second"; do
        echo "NodeName=${node% *} NodeHostname=$host NodeAddr=127.0.0.1 Port=${node#* } CPUs=$cores" \
            "Boards=1 SocketsPerBoard=1 CoresPerSocket=$cores ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN"
    done >>"$SLURM_CONF"
}

start() {
    mkdir -p "$folder"/{state,n1/tmp,n2/tmp,munge}
    chmod 711 "$folder" "$folder/munge"
    head -c 1024 /dev/urandom >"$folder/munge/key"
    chmod 400 "$folder/munge/key"
    write_config
    # --force: as root and in a folder whose parents others may write to, such as /tmp.
    munged --force --key-file "$folder/munge/key" --socket "$folder/munge/socket" --pid-file "$folder/munged.pid" \
        --log-file "$folder/munged.log" --seed-file "$folder/munge/seed" 2>>"$folder/munged.log"
    slurmctld -f "$SLURM_CONF"
    slurmd -f "$SLURM_CONF" -N n1
    slurmd -f "$SLURM_CONF" -N n2
    for _ in {1..120}; do
        [[ $(sinfo -h -o %T 2>/dev/null | sort -u) != idle ]] || return 0
        sleep 0.25
    done
    sinfo >&2
    echo "the nodes did not come up in 30 s; see the logs in $folder" >&2
    return 1
}

# Ends the daemons one after the other, and each before the next, so that nothing is written behind this.
stop() {
    local name pid
    scancel --state=RUNNING 2>/dev/null || true
    scancel --state=PENDING 2>/dev/null || true
    for name in slurmd-n1 slurmd-n2 slurmctld munged; do
        [[ -s $folder/$name.pid ]] || continue
        pid=$(<"$folder/$name.pid")
        kill "$pid" 2>/dev/null || continue
        for _ in {1..100}; do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
    done
}

case $verb in
    start | stop) "$verb" ;;
    *) echo "cluster.sh start|stop FOLDER, not '$verb'" >&2; exit 2 ;;
esac
