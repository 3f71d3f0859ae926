# The container whose fate is scripted: the one named `engine`, else the first.
def engine_of($list): [$list[]? | select(.name == "engine")][0] // $list[0]?;
def engine: engine_of(.status.containerStatuses);
# A setting: an annotation on the pod, else an entry of the engine's env (`crash-count` is SIM_CRASH_COUNT there).
def sim($key): .metadata.annotations["sim.ai.infra.example.com/" + $key] // ([engine_of(.spec.containers).env[]? | select(.name == "SIM_" + ($key | gsub("-"; "_") | ascii_upcase)) | .value][0]);
def of_job: any(.metadata.ownerReferences[]?; .kind == "Job");
def alive: .metadata.deletionTimestamp == null;
def condition($type): any(.status.conditions[]?; .type == $type and .status == "True");
def ready: condition("Ready");
# Containers that must end before the others start; sidecars do not end.
def initializers: [.spec.initContainers[]? | select(.restartPolicy != "Always") | .name];
def initializer_statuses: initializers as $names | [.status.initContainerStatuses[]? | select(.name as $name | $names | index($name) != null)];
# The bucket of the source decides how the loader fails, unless a setting does.
def bucket: [.spec.initContainers[]? | select(.name == "model-loader") | ((.args // []) + (.command // []))[] | capture("s3://sim-(?<fate>[a-z]+)") | .fate][0];
def load_exit: sim("load-exit-code") // {"unauthorized": "10", "notfound": "11", "unreachable": "12", "checksum": "13", "outofspace": "14"}[bucket // ""] // "0";
# The value of a flag of the trainer; of one that is given twice the last one counts.
def flag($name): [.spec.containers[]? | select(.name == "trainer") | .args // []][0] // [] | . as $args | rindex([$name]) as $at | if $at == null then null else $args[$at + 1] end;
def is_trainer: engine_of(.spec.containers).name == "trainer";
# How long a pod of a Job runs; null: as the stage says.
def run_time: sim("run-time") // (if is_trainer then "@time" else null end);
# Billions of parameters, by the name of the model.
def billions: [flag("--model") // "" | capture("(?<size>[0-9.]+)B([^a-z]|$)") | .size | tonumber][0] // 0;
def trainer_gpus: (engine_of(.spec.containers).resources.limits["nvidia.com/gpu"] // "0" | tonumber) * ([engine_of(.spec.containers).env[]? | select(.name == "NNODES") | .value | tonumber][0] // 1);
# Weights, gradients and the state of the optimizer have 16 bytes for each parameter, and a GPU 80 GB.
def too_large: is_trainer and trainer_gpus > 0 and (flag("--tuner_type") // flag("--train_type")) == "full" and billions * 16 > trainer_gpus * 80;
# A setting may be for pods alone whose first argument is this, such as the comparison of an evaluation.
def is_meant: sim("crash-only") as $only | $only == null or $only == [engine_of(.spec.containers).args // [] | .[0]][0];
# With a crash reason and no count the engine crashes without end.
def crashing: ((sim("crash-reason") != null and is_meant) or too_large) and ((sim("crash-count") // "1000000" | tonumber) > (engine.restartCount // 0));
# A crash comes before the pod is ready, unless a setting moves it after that.
def crash_first: crashing and sim("crash-when") != "ready";
def failing: sim("fail-reason") != null;
