#!/bin/bash
#SBATCH --job-name=[[ submission.name ]]
#SBATCH --output=[[ submission.log | replace("%", "%%") | quote ]]
#SBATCH --open-mode=append
#SBATCH --requeue
{# the hours of the model that takes longest #}
{% set models = submission.jobs | map(attribute="model") | select | list %}
{% set hours = (models | map(attribute="hours", default=site.hours) | list or [site.hours]) | max %}
{% set minutes = [1, (60 * hours) | round | int] | max %}
#SBATCH --time=[[ "%d-%02d:%02d:00" | format(minutes // 1440, minutes // 60 % 24, minutes % 60) ]]
{# at most half of the time: a job that is requeued at once gets nowhere #}
#SBATCH --signal=B:USR1@[[ [site.signal_before, 30 * minutes] | min ]]
#SBATCH --nodes=[[ submission.nodes ]]
#SBATCH --ntasks-per-node=1
{% if site.account %}
#SBATCH --account=[[ site.account ]]
{% endif %}
{% if site.partition and (submission.gpus or not site.cpu_options) %}
#SBATCH --partition=[[ site.partition ]]
{% endif %}
{% for option in site.options + (site.gpu_options if submission.gpus else site.cpu_options) %}
#SBATCH [[ option | replace("{gpus}", submission.gpus) ]]
{% endfor %}
{% if submission.gpus and site.whole_nodes %}
#SBATCH --exclusive
{% endif %}
# The time is nearly up, or an urgent job wants the place: back into the queue, to resume from there.
# Where that is not allowed, as a new job, which is told whose work it resumes.
export RULERKIT_JOB="${1:-$SLURM_JOB_ID}"
requeue() {
  trap : USR1
  scontrol requeue "$SLURM_JOB_ID" ||
    env -u SLURM_RESTART_COUNT -u CUDA_VISIBLE_DEVICES sbatch --dependency=singleton [[ submission.script | string | quote ]] "$RULERKIT_JOB"
}
trap requeue USR1
cd [[ home | string | quote ]] || exit 1
export RULERKIT_HOME=[[ home | string | quote ]]
{% for name, value in variables.items() %}
export [[ name ]]=[[ value | quote ]]
{% endfor %}
{% for line in site.setup %}
[[ line ]]
{% endfor %}
{% set files = submission.jobs | map(attribute="file") | map("string") | map("quote") | list %}
{% set rulerkit = (site.launcher ~ " " ~ site.python ~ " -m rulerkit") | trim %}
{% if submission.nodes > 1 %}
# The other nodes run their shares of the server on this one: `vllm serve --headless`.
export RULERKIT_MASTER="${RULERKIT_MASTER:-$(hostname):$((20000 + SLURM_JOB_ID % 10000))}"
{% set follow = "exec " ~ (site.launcher ~ " " ~ site.python) | trim ~ " -m rulerkit.batch.execution " ~ (files | first) ~ " $((SLURM_PROCID + 1))" %}
srun --overlap --cpu-bind=none --nodes=[[ submission.nodes - 1 ]] --ntasks=[[ submission.nodes - 1 ]] --relative=1 bash -c [[ follow | quote ]] &
{% endif %}
[[ rulerkit ]] run [[ files | join(" ") ]] &
wait $!; status=$?
# A trap ends the wait, not the work.
while [ $status -gt 128 ] && kill -0 $! 2>/dev/null; do wait $!; status=$?; done
exit $status
