#!/bin/bash
#SBATCH --job-name={{ name }}
#SBATCH --output={{ log | replace("%", "%%") | quote }}
#SBATCH --open-mode=append
#SBATCH --requeue
{% set minutes = [1, (60 * hours) | round | int] | max %}
#SBATCH --time={{ "%d-%02d:%02d:00" | format(minutes // 1440, minutes // 60 % 24, minutes % 60) }}
{# five minutes before the end, at most half of the time: a job that is requeued at once gets nowhere #}
#SBATCH --signal=B:USR1@{{ [300, 30 * minutes] | min }}
#SBATCH --nodes={{ nodes }}
#SBATCH --ntasks-per-node=1
{% for option in site.options + (site.gpu_options if gpus else site.cpu_options) %}
#SBATCH {{ option | replace("{gpus}", gpus) }}
{% endfor %}
# The time is nearly up, or an urgent job wants the place: back into the queue, to resume from there.
# Where that is not allowed, as a new job, which is told how often this one began. The twentieth gives up.
starts=$((${1:-0} + ${SLURM_RESTART_COUNT:-0} + 1))
requeue() {
  trap : USR1
  [ $starts -lt 20 ] || return
  scontrol requeue "$SLURM_JOB_ID" ||
    env -u SLURM_RESTART_COUNT -u CUDA_VISIBLE_DEVICES sbatch --dependency=singleton {{ script | string | quote }} $starts
}
trap requeue USR1
cd {{ home | string | quote }} || exit 1
export RULERKIT_HOME={{ home | string | quote }}
{% for line in site.setup %}
{{ line }}
{% endfor %}
{% set rulerkit = site.python ~ " -m rulerkit " ~ command %}
{% if nodes > 1 %}
# The other nodes run their shares of the server on this one: `vllm serve --headless`.
export RULERKIT_MASTER="${RULERKIT_MASTER:-$(hostname):$((20000 + SLURM_JOB_ID % 10000))}"
{% set follow = "exec " ~ rulerkit ~ " --node $((SLURM_PROCID + 1))" %}
srun --overlap --cpu-bind=none --nodes={{ nodes - 1 }} --ntasks={{ nodes - 1 }} --relative=1 bash -c {{ follow | quote }} &
{% endif %}
{{ rulerkit }} &
wait $!; status=$?
# A trap ends the wait, not the work.
while [ $status -gt 128 ] && kill -0 $! 2>/dev/null; do wait $!; status=$?; done
exit $status
